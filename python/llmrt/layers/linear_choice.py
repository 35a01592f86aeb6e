"""Times the linear kernels once at load and chooses by number of rows."""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Sequence

import torch

from llmrt.layers.linear import PERIOD, KernelChoice, Kernels
from llmrt.layers.linear_kernels import KERNELS, Packed

logger = logging.getLogger(__name__)

BUCKETS = (1, 8, 32, 256)
"""Row counts that are timed; a bucket serves row counts up to the geometric middle to the next one."""

WORTH_SWITCHING = 1.25
"""A second kernel costs a second copy of the weights, so it must be this much faster in its bucket."""

EXACT = frozenset(("fp32", "mkldnn"))
"""Kernels that keep weights in float32."""

_NO_LIMIT = 1 << 62
_REPEATS = 2
_PROBE_OUT = 32
_MOST_PADDING = 2
_CACHE_BYTES = 48 << 20


def kernels(shapes: Sequence[tuple[int, int]], dtype: str) -> Kernels:
    """Chooses kernels for a model whose layers have linears of ``shapes`` ``(out, in)``.

    ``dtype``: ``auto`` (float32 for exact rows, the fastest lossless kernel for others), ``float32``, ``float16``
    (weights) or ``bfloat16`` (weights and activations) for both. Raises ``ValueError`` on another one. Takes well
    under a second of CPU time.
    """
    by_dtype = {
        "auto": ("fp16", "fp32", "mkldnn"),
        "float32": ("fp32", "mkldnn"),
        "float16": ("fp16",),
        "bfloat16": ("bf16",),
    }
    if dtype not in by_dtype:
        raise ValueError(f"dtype {dtype!r} is not known; {', '.join(by_dtype)} are")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _kernels(shapes, by_dtype[dtype], dtype == "auto")
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def _kernels(shapes: Sequence[tuple[int, int]], names: Sequence[str], separate: bool) -> Kernels:
    # Waves look as random as a check needs and take a tenth of the time of random numbers.
    weights = [torch.arange(out * width).mul(0.7).sin_().mul_(0.05).view(out, width) for out, width in shapes]
    packed: dict[str, list[Packed]] = {}
    for name in names:
        working = _working(name, weights)
        if working is not None:
            packed[name] = working
    if not packed:
        logger.warning("none of the linear kernels %s works here; fp32 serves", ", ".join(names))
        packed["fp32"] = [KERNELS["fp32"].pack(weight, None) for weight in weights]
    widths = [shape[1] for shape in shapes]
    seconds = {name: [_time(packed[name], widths, rows) for rows in BUCKETS] for name in packed if len(packed) > 1}
    for name, times in seconds.items():
        shown = "/".join(f"{1000 * t:.2f}" for t in times)
        logger.info("linear kernel %s: %s ms of CPU per layer at %s rows", name, shown, "/".join(map(str, BUCKETS)))
    fast = _choice(seconds or dict.fromkeys(packed, [1.0] * len(BUCKETS)), widths[0])
    exact = fast
    if separate and not EXACT.issuperset(fast.names):
        # Prompts fill batches, so the largest bucket decides, and a second kernel would not pay for its memory.
        best = min(EXACT & seconds.keys(), key=lambda name: seconds[name][-1])
        exact = KernelChoice((best,), (_NO_LIMIT,))
    shown = "/".join(map(str, BUCKETS))
    logger.info("linear kernels: %s for prompts, %s at %s rows else", exact.names[-1], "/".join(fast.names), shown)
    if not fast.padded:
        logger.info("with these kernels the last bits of a result depend on how many rows share a step")
    return Kernels(exact, fast)


def _working(name: str, weights: list[torch.Tensor]) -> list[Packed] | None:
    x = torch.randn(2, weights[0].shape[1], generator=torch.Generator().manual_seed(0))
    expected = x @ weights[0].T
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            packed = [KERNELS[name].pack(weight, None) for weight in weights]
            error = (packed[0](x) - expected).abs().max() / expected.abs().max()
    except (RuntimeError, AttributeError, NotImplementedError, TypeError, Warning) as reason:
        logger.info("linear kernel %s is not available: %s", name, str(reason).partition("\n")[0])
        return None
    if not error <= KERNELS[name].tolerance:
        logger.warning("linear kernel %s is off by %.1e here and is not used", name, float(error))
        return None
    return packed


def _choice(seconds: dict[str, list[float]], width: int) -> KernelChoice:
    """The kernel for each bucket: the best over all, or a much faster one that rounds like it."""
    best = [min(times) for times in zip(*seconds.values(), strict=True)]
    overall = min(seconds, key=lambda name: sum(t / b for t, b in zip(seconds[name], best, strict=True)))
    # A token must not depend on how many share its step by more than the last bits.
    alike = EXACT & seconds.keys() if overall in EXACT else {overall}
    best = [min(seconds[name][i] for name in alike) for i in range(len(BUCKETS))]
    chosen = [
        min(alike, key=lambda name: seconds[name][i]) if seconds[overall][i] > WORTH_SWITCHING * best[i] else overall
        for i in range(len(BUCKETS))
    ]
    limits = [int((a * b) ** 0.5) for a, b in itertools.pairwise(BUCKETS)] + [_NO_LIMIT]
    return KernelChoice(tuple(chosen), tuple(limits), _padding(overall, width) if len(set(chosen)) == 1 else ())


def _time(kernels: list[Packed], widths: list[int], rows: int) -> float:
    """CPU seconds of one layer at ``rows`` rows; small batches with cold caches, as a step finds them.

    CPU time of one thread ranks kernels alike on a busy machine, where elapsed time says more about its neighbours.
    """
    inputs = [torch.ones(rows, width) for width in widths]
    flush = torch.empty(_CACHE_BYTES // 4) if rows <= 8 else None
    best = float("inf")
    for _ in range(_REPEATS):
        if flush is not None:
            flush.zero_()
        begin = time.thread_time()
        for kernel, x in zip(kernels, inputs, strict=True):
            kernel(x)
        best = min(best, time.thread_time() - begin)
    return best


def _padding(name: str, width: int) -> tuple[int, ...]:
    """For each number of rows up to ``PERIOD`` the next one at which all rows come out as in a large batch.

    Empty when that costs more than ``_MOST_PADDING`` rows, or when the next period is not like the first (then
    nothing is known of larger batches).
    """
    generator = torch.Generator().manual_seed(1)
    kernel = KERNELS[name].pack(torch.randn(_PROBE_OUT, width, generator=generator), None)
    x = torch.randn(2 * PERIOD, width, generator=generator)
    reference = kernel(x)
    steady = [torch.equal(kernel(x[:rows]), reference[:rows]) for rows in range(1, 2 * PERIOD + 1)]
    if steady[:PERIOD] != steady[PERIOD:]:
        return ()
    padded = [0]
    for rows in range(1, PERIOD + 1):
        near = [other for other in range(rows, min(rows + _MOST_PADDING, PERIOD) + 1) if steady[other - 1]]
        if not near:
            return ()
        padded.append(near[0])
    return tuple(padded)
