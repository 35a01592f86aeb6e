"""``bad_words``: sequences of tokens that are never completed.

The last token of a sequence is ruled out where those before it end what the request has so far, prompt included.
"""

from __future__ import annotations

from array import array

import torch

from llmrt.sampling.slots import Slots
from llmrt.wire import Sampling, u32s


class _Words:
    """The sequences of one slot by what comes before their last tokens, and the tokens that it has."""

    def __init__(self, words: list[array[int]], vocab_size: int, tokens: list[int]) -> None:
        self.ends: dict[tuple[int, ...], list[int]] = {}
        for word in words:
            if word and word[-1] < vocab_size:
                self.ends.setdefault(tuple(word[:-1]), []).append(word[-1])
        self.lengths = sorted({len(before) for before in self.ends})
        self.tokens = tokens

    def banned(self) -> list[int]:
        """The tokens that would complete a sequence now."""
        found: list[int] = []
        for length in self.lengths:
            found += self.ends.get(tuple(self.tokens[max(0, len(self.tokens) - length) :]), ())
        return found


class BadWords:
    """Only slots with such sequences cost anything."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._words: dict[int, _Words] = {}

    def start(self, slot: int, sampling: Sampling, tokens: torch.Tensor) -> bool:
        """Takes the settings of a slot and its ``tokens`` so far (int64); says whether its logits may change."""
        self.free(slot)
        if sampling.bad_words:
            words = [u32s(word) for word in sampling.bad_words]
            self._words[slot] = _Words(words, self._vocab_size, tokens.tolist())
        return bool(sampling.bad_words)

    def free(self, slot: int) -> None:
        """Forgets a slot."""
        self._words.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Slots) -> None:
        """Changes ``logits`` ``[rows, vocab_size]`` of ``slots`` in place.

        It comes after the other masks: a sequence is let pass where nothing else could be chosen.
        """
        if not self._words:
            return
        for row, slot in enumerate(slots.tolist()):
            words = self._words.get(slot)
            banned = words.banned() if words is not None else ()
            if banned:
                ids = torch.tensor(banned)
                before = logits[row, ids]
                logits[row, ids] = -torch.inf
                if logits[row].amax() == -torch.inf:
                    logits[row, ids] = before

    def record(self, slots: Slots, tokens: torch.Tensor) -> None:
        """Takes the token (int64 ``[rows]``) that each of ``slots`` has got."""
        if not self._words:
            return
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            words = self._words.get(slot)
            if words is not None:
                words.tokens.append(token)
