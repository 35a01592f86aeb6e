"""A step's frame, cut by the detokenizers of its requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmrt import wire
from llmrt.engine.lanes import lane_of, split


@st.composite
def frames(draw: st.DrawFn) -> wire.TokenFrame:
    ids = draw(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=12))
    rows = [draw(st.lists(st.integers(0, 2**32 - 1), max_size=3)) for _ in ids]
    marked = [row for row in range(len(ids)) if draw(st.booleans())]
    # Rows with log probabilities, and how many of the likeliest tokens each has; all values differ.
    tops = {row: draw(st.integers(0, 2)) for row in range(len(ids)) if draw(st.booleans())}
    chosen = [1000 * row + at for row in tops for at in range(len(rows[row]))]
    likeliest = [1000 * row + at for row, k in tops.items() for at in range(k * len(rows[row]))]
    logprobs = wire.Logprobs(
        wire.u32(tops), wire.u32(tops.values()), wire.f32(chosen), wire.u32(likeliest), wire.f32(likeliest)
    )
    return wire.TokenFrame(
        step=draw(st.integers(0, 9)),
        opened=[wire.Opened(ids[row], wire.u32([row]), wire.Output()) for row in marked],
        ids=wire.u64(ids),
        counts=wire.u32(map(len, rows)),
        tokens=wire.u32(token for row in rows for token in row),
        first=[wire.First(row, row, 1, 2) for row in marked],
        finished=[wire.Finished(row, wire.Outcome(wire.STOP, stop_token=row)) for row in reversed(marked)],
        logprobs=logprobs if tops else None,
        prompt_logprobs=[wire.PromptLogprobs(row, 0, wire.f32([row]), b"", b"") for row in marked],
    )


def told(frame: wire.TokenFrame) -> dict[int, list[object]]:
    """All that a frame says of each request."""
    frame.check()
    ids, tokens = wire.u64s(frame.ids), list(wire.u32s(frame.tokens))
    said: dict[int, list[object]] = {}
    for id, count in zip(ids, wire.u32s(frame.counts), strict=True):
        said[id] = [tokens[:count]]
        del tokens[:count]
    for opened in frame.opened:
        said[opened.id].append((opened.prompt_tail, opened.output))
    for first in frame.first:
        said[ids[first.row]].append((first.cached_tokens, first.queue_us, first.prefill_us))
    for finished in frame.finished:
        said[ids[finished.row]].append(finished.outcome)
    for prompt in frame.prompt_logprobs:
        said[ids[prompt.row]].append((prompt.top, prompt.chosen))
    if frame.logprobs is not None:
        counts, tops = wire.u32s(frame.counts), wire.u32s(frame.logprobs.top)
        chosen, likeliest = list(wire.f32s(frame.logprobs.chosen)), list(wire.u32s(frame.logprobs.top_ids))
        for row, k in zip(wire.u32s(frame.logprobs.rows), tops, strict=True):
            said[ids[row]].append((k, chosen[: counts[row]], likeliest[: counts[row] * k]))
            del chosen[: counts[row]], likeliest[: counts[row] * k]
        assert frame.logprobs.top_ids == wire.u32(map(int, wire.f32s(frame.logprobs.top_logprobs)))
    return said


@given(frames(), st.integers(1, 5))
def test_every_row_reaches_the_detokenizer_of_its_request_whole(frame: wire.TokenFrame, lanes: int) -> None:
    parts = split(frame, lanes)
    together: dict[int, list[object]] = {}
    for lane, part in parts.items():
        said = told(part)
        assert part.step == frame.step
        assert lanes == 1 or said
        assert {lane_of(id, lanes) for id in said} <= {lane}
        together |= said
    assert together == told(frame)


def test_nothing_of_a_frame_is_forgotten() -> None:
    """``split`` must know every field that a frame gets."""
    known = {"step", "opened", "ids", "counts", "tokens", "first", "finished", "logprobs", "prompt_logprobs"}
    assert set(wire.TokenFrame.__struct_fields__) == known
