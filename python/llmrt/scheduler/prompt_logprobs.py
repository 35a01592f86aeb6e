"""Log probabilities of a prompt on their way from the ranks, which compute it in chunks, to one frame."""

from __future__ import annotations

from llmrt import wire
from llmrt.scheduler.plan import RowLogprobs


class PromptLogprobs:
    """Those of one request; see :class:`llmrt.wire.PromptLogprobs`."""

    __slots__ = ("_chosen", "_top_ids", "_top_logprobs", "_wanted", "top")

    def __init__(self, top: int | None, prompt_tokens: int) -> None:
        self.top = top
        """How many of the likeliest come with each token; ``None``: nobody asked."""
        self._wanted = prompt_tokens - 1
        self._chosen, self._top_ids, self._top_logprobs = bytearray(), bytearray(), bytearray()

    @property
    def missing(self) -> bool:
        """Whether some are still to be computed."""
        return self.top is not None and len(self._chosen) < 4 * self._wanted

    def add(self, begin: int, part: RowLogprobs) -> None:
        """Takes those behind the tokens from ``begin`` on.

        A preempted request computes its prompt again, in other chunks; what it has already is left out.
        """
        known = 4 * (len(self._chosen) // 4 - begin)
        if known >= 0:
            self._chosen += part.chosen[known:]
            self._top_ids += part.top_ids[known * part.top :]
            self._top_logprobs += part.top_logprobs[known * part.top :]

    def take(self, row: int) -> wire.PromptLogprobs:
        """All of them, for a row of a frame; they are kept no longer."""
        columns = (bytes(column) for column in (self._chosen, self._top_ids, self._top_logprobs))
        top, self.top = self.top, None
        return wire.PromptLogprobs(row, top or 0, *columns)
