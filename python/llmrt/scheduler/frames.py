"""Collects what one TokenFrame says."""

from __future__ import annotations

from llmrt import wire
from llmrt.scheduler.plan import RowLogprobs
from llmrt.scheduler.request import Request

PROMPT_TAIL = 16
"""Prompt tokens that the detokenizer is told, at most."""


class FrameBuilder:
    """Rows of one frame. ``ids``, ``counts`` and ``tokens`` are filled directly where it must be fast."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self._opened: list[wire.Opened] = []
        self._first: list[wire.First] = []
        self._finished: list[wire.Finished] = []
        self._logprobs: list[tuple[int, RowLogprobs]] = []
        self._prompt_logprobs: list[wire.PromptLogprobs] = []

    def open(self, request: Request) -> None:
        """Introduces a request to the detokenizer, once."""
        if not request.opened:
            request.opened = True
            tail = request.tokens[max(0, request.prompt_tokens - PROMPT_TAIL) : request.prompt_tokens]
            self._opened.append(wire.Opened(request.id, wire.u32(tail), request.output))

    def first(self, request: Request, now_ns: int) -> None:
        """The last row has the request's first token."""
        self.open(request)
        request.first_sent = True
        queued = (request.scheduled_ns - request.arrived_ns) // 1000
        prefill = (now_ns - request.scheduled_ns) // 1000
        row = len(self.ids) - 1
        self._first.append(wire.First(row, request.cached_tokens, queued, prefill))
        if request.prompt_logprobs.top is not None:
            self._prompt_logprobs.append(request.prompt_logprobs.take(row))

    def drop_token(self) -> None:
        """The last row's token is not told of."""
        self.counts[-1] -= 1
        self.tokens.pop()

    def logprobs(self, row: int, values: RowLogprobs) -> None:
        """Those of a row's tokens; rows come in order."""
        if self.counts[row]:
            self._logprobs.append((row, values))

    def finish_row(self, outcome: wire.Outcome) -> None:
        """The last row's request has ended."""
        self._finished.append(wire.Finished(len(self.ids) - 1, outcome))

    def finish(self, request: Request, outcome: wire.Outcome) -> None:
        """A request has ended without a token in this frame."""
        self.open(request)
        self._end_only(request.id, outcome)

    def refuse(self, request: wire.Request, message: str, status: int = 400) -> None:
        """A request ends before it was taken in."""
        self._opened.append(wire.Opened(request.id, b"", request.output))
        self._end_only(request.id, wire.Outcome(wire.ERROR, status=status, message=message))

    def _end_only(self, id: int, outcome: wire.Outcome) -> None:
        self.ids.append(id)
        self.counts.append(0)
        self.finish_row(outcome)

    def build(self, step: int) -> wire.TokenFrame:
        """The frame; the builder is used up."""
        return wire.TokenFrame(
            step=step,
            opened=self._opened,
            ids=wire.u64(self.ids),
            counts=wire.u32(self.counts),
            tokens=wire.u32(self.tokens),
            first=self._first,
            finished=self._finished,
            logprobs=self._build_logprobs(),
            prompt_logprobs=self._prompt_logprobs,
        )

    def _build_logprobs(self) -> wire.Logprobs | None:
        if not self._logprobs:
            return None
        return wire.Logprobs(
            rows=wire.u32(row for row, _ in self._logprobs),
            top=wire.u32(values.top for _, values in self._logprobs),
            chosen=b"".join(values.chosen for _, values in self._logprobs),
            top_ids=b"".join(values.top_ids for _, values in self._logprobs),
            top_logprobs=b"".join(values.top_logprobs for _, values in self._logprobs),
        )
