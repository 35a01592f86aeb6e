"""Per-slot state: tokens and page tables, changed by plans alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmrt.scheduler.plan import PAGE_SIZE, PageGrant, SlotStart

Ints = npt.NDArray[np.int64]


class PlanError(ValueError):
    """A plan that contradicts the state of the slots; the step was not run."""


def column(raw: bytes) -> Ints:
    """A u32 column of a plan as int64. Raises :class:`PlanError` when it is not whole."""
    if len(raw) % 4:
        raise PlanError(f"a u32 column has {len(raw)} bytes")
    return np.frombuffer(raw, dtype="<u4").astype(np.int64)


class SlotTable:
    """``tokens`` ``[num_slots, max_model_len + 1]``, ``lengths`` (tokens held), ``prompts`` (how many of them
    are prompt), ``pages`` and how many are held, ``reports`` (log probabilities of generated tokens)."""

    def __init__(self, num_slots: int, max_model_len: int, num_pages: int, vocab_size: int) -> None:
        self._num_pages = num_pages
        self._vocab_size = vocab_size
        self.num_slots = num_slots
        self.tokens = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.lengths = np.zeros(num_slots, np.int64)
        self.prompts = np.zeros(num_slots, np.int64)
        self.reports = np.zeros(num_slots, np.bool_)
        self.pages = np.zeros((num_slots, -(-(max_model_len + 1) // PAGE_SIZE)), np.int64)
        self.page_counts = np.zeros(num_slots, np.int64)

    def free(self, slot: int) -> None:
        """Empties a slot."""
        self._check(slot)
        self.lengths[slot] = 0
        self.page_counts[slot] = 0

    def start(self, start: SlotStart) -> Ints:
        """Fills a slot and gives its tokens. Raises :class:`PlanError` on tokens that do not fit."""
        self.free(start.slot)
        tokens = column(start.tokens)
        if not 0 < start.prompt_tokens <= len(tokens) < self.tokens.shape[1]:
            raise PlanError(
                f"slot {start.slot} starts with {len(tokens)} tokens, {start.prompt_tokens} of prompt; "
                f"sequences hold 1 to {self.tokens.shape[1] - 1}"
            )
        if tokens.max() >= self._vocab_size:
            raise PlanError(f"token {tokens.max()} is outside the vocabulary of {self._vocab_size}")
        self.tokens[start.slot, : len(tokens)] = tokens
        self.lengths[start.slot] = len(tokens)
        self.prompts[start.slot] = start.prompt_tokens
        self.reports[start.slot] = start.sampling.logprobs is not None
        return tokens

    def exact(self, slots: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
        """Whether each token is computed exactly: it belongs to a prompt, or is reported with its log probability."""
        return (positions < self.prompts[slots]) | self.reports[slots]

    def grant(self, grant: PageGrant) -> None:
        """Appends pages to a slot. Raises :class:`PlanError` on pages that do not exist or do not fit."""
        self._check(grant.slot)
        pages = column(grant.pages)
        held = int(self.page_counts[grant.slot])
        if held + len(pages) > self.pages.shape[1]:
            raise PlanError(f"slot {grant.slot} cannot hold {held + len(pages)} pages; {self.pages.shape[1]} fit")
        if len(pages) and not 0 < pages.min() <= pages.max() < self._num_pages:
            raise PlanError(f"slot {grant.slot} is granted pages outside 1 to {self._num_pages - 1}")
        self.pages[grant.slot, held : held + len(pages)] = pages
        self.page_counts[grant.slot] += len(pages)

    def append(self, slots: Ints, positions: Ints, tokens: Ints) -> None:
        """Each of ``slots`` gets one token at its position."""
        self.tokens[slots, positions] = tokens
        self.lengths[slots] = positions + 1

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise PlanError(f"slot {slot} does not exist; there are {self.num_slots}")
