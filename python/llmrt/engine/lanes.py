"""The links to the detokenizers. Each has the requests whose ids fall to it, and gets their rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from llmrt import link, wire


class Lanes:
    """One outbox per detokenizer, and the frames that they have not taken yet.

    A step without one of the detokenizers would not be heard by its requests, so all of them must be there.
    """

    def __init__(self, outboxes: Sequence[link.Outbox]) -> None:
        self.outboxes = outboxes
        self._unsent: dict[int, wire.TokenFrame] = {}

    @property
    def ready(self) -> bool:
        """Whether every detokenizer listens."""
        return all(outbox.ready for outbox in self.outboxes)

    def close(self, reason: str) -> None:
        """Says ``Dead`` to all and disconnects for good."""
        for outbox in self.outboxes:
            outbox.close(reason)

    def register(self, poller: zmq.Poller) -> None:
        """Adds the links to the poller of a loop."""
        for outbox in self.outboxes:
            outbox.register(poller)

    def lane_of(self, id: int) -> int:
        """The detokenizer that a request belongs to."""
        return lane_of(id, len(self.outboxes))

    def receive(self) -> list[tuple[int, str]]:
        """Detokenizers that were lost since the last call, with the reason; what was not sent to them is dropped."""
        lost = []
        for lane, outbox in enumerate(self.outboxes):
            for change in outbox.receive():
                if isinstance(change, link.Down):
                    self._unsent.pop(lane, None)
                    lost.append((lane, change.reason))
        return lost

    def send(self, frame: wire.TokenFrame | None) -> None:
        """Sends a step's rows to the detokenizers concerned. Must not be called while frames wait."""
        if frame is not None:
            self._unsent = split(frame, len(self.outboxes))
            self.flush()

    def flush(self) -> bool:
        """Sends what was not taken yet. Whether no frame waits; one that does not read holds up no other's frame."""
        for lane, frame in list(self._unsent.items()):
            try:
                self.outboxes[lane].send(frame)
            except (link.Full, link.NotReady):
                continue
            del self._unsent[lane]
        return not self._unsent


def lane_of(id: int, lanes: int) -> int:
    """The detokenizer of a request, of ``lanes``; the mock engine counts in the same way."""
    return id % lanes


def split(frame: wire.TokenFrame, lanes: int) -> dict[int, wire.TokenFrame]:
    """Cuts a frame by the detokenizers of its rows; who has none gets no frame."""
    if lanes == 1:
        return {0: frame}
    parts: dict[int, _Part] = {}
    ids, counts, tokens = wire.u64s(frame.ids), wire.u32s(frame.counts), wire.u32s(frame.tokens)
    # Row of the frame -> its part and its row there.
    places: list[tuple[_Part, int]] = []
    start = 0
    for id, count in zip(ids, counts, strict=True):
        part = parts.setdefault(lane_of(id, lanes), _Part())
        places.append((part, len(part.ids)))
        part.ids.append(id)
        part.counts.append(count)
        part.tokens += tokens[start : start + count]
        start += count
    for opened in frame.opened:
        parts.setdefault(lane_of(opened.id, lanes), _Part()).opened.append(opened)
    for first in frame.first:
        part, row = places[first.row]
        part.first.append(wire.First(row, first.cached_tokens, first.queue_us, first.prefill_us))
    for finished in frame.finished:
        part, row = places[finished.row]
        part.finished.append(wire.Finished(row, finished.outcome))
    for prompt in frame.prompt_logprobs:
        part, row = places[prompt.row]
        values = (prompt.top, prompt.chosen, prompt.top_ids, prompt.top_logprobs)
        part.prompt_logprobs.append(wire.PromptLogprobs(row, *values))
    if frame.logprobs is not None:
        _deal(frame.logprobs, counts, places)
    return {lane: part.frame(frame.step) for lane, part in parts.items()}


def _deal(logprobs: wire.Logprobs, counts: Sequence[int], places: Sequence[tuple[_Part, int]]) -> None:
    """Gives the values of each row to its part. All columns have four bytes a value."""
    chosen = top = 0
    for row, k in zip(wire.u32s(logprobs.rows), wire.u32s(logprobs.top), strict=True):
        part, place = places[row]
        chosen_end, top_end = chosen + 4 * counts[row], top + 4 * counts[row] * k
        part.rows.append(place)
        part.top.append(k)
        part.chosen += logprobs.chosen[chosen:chosen_end]
        part.top_ids += logprobs.top_ids[top:top_end]
        part.top_logprobs += logprobs.top_logprobs[top:top_end]
        chosen, top = chosen_end, top_end


class _Part:
    """The rows of one detokenizer."""

    def __init__(self) -> None:
        self.opened: list[wire.Opened] = []
        self.ids: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.first: list[wire.First] = []
        self.finished: list[wire.Finished] = []
        self.prompt_logprobs: list[wire.PromptLogprobs] = []
        self.rows: list[int] = []
        self.top: list[int] = []
        self.chosen = bytearray()
        self.top_ids = bytearray()
        self.top_logprobs = bytearray()

    def frame(self, step: int) -> wire.TokenFrame:
        return wire.TokenFrame(
            step=step,
            opened=self.opened,
            ids=wire.u64(self.ids),
            counts=wire.u32(self.counts),
            tokens=wire.u32(self.tokens),
            first=self.first,
            finished=self.finished,
            logprobs=self._logprobs() if self.rows else None,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _logprobs(self) -> wire.Logprobs:
        columns = (bytes(self.chosen), bytes(self.top_ids), bytes(self.top_logprobs))
        return wire.Logprobs(wire.u32(self.rows), wire.u32(self.top), *columns)
