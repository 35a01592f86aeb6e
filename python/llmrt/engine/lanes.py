"""The links to the detokenizers. Each has the requests whose id falls to it, and gets their rows of a step in one frame."""

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

    def send(self, frame: wire.TokenFrame | None, but: int = -1) -> bool:
        """Sends a step's rows to the detokenizers concerned, except to number ``but``; returns as :meth:`flush`.

        Must not be called while frames wait.
        """
        if frame is not None:
            self._unsent = split(frame, len(self.outboxes))
            self._unsent.pop(but, None)
        return self.flush()

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
    return {lane: part.frame(frame.step) for lane, part in parts.items()}


class _Part:
    """The rows of one detokenizer."""

    def __init__(self) -> None:
        self.opened: list[wire.Opened] = []
        self.ids: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.first: list[wire.First] = []
        self.finished: list[wire.Finished] = []

    def frame(self, step: int) -> wire.TokenFrame:
        return wire.TokenFrame(
            step=step,
            opened=self.opened,
            ids=wire.u64(self.ids),
            counts=wire.u32(self.counts),
            tokens=wire.u32(self.tokens),
            first=self.first,
            finished=self.finished,
        )
