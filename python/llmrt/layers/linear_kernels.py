"""The ways torch offers to compute a linear layer on a CPU.

Every kernel takes and gives float32 activations. ``fp32``, ``mkldnn`` and ``fp16`` also sum in float32 and count as
lossless: ``fp16`` rounds weights to 11 bits of mantissa, more than bfloat16 checkpoints hold. ``bf16`` rounds
activations too and is used only where the user asks for it. There is no int8 kernel: torch deprecates the quantised
tensors that its prepacked one needs, and on small models it changes one greedy token in six.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Packed = Callable[[torch.Tensor], torch.Tensor]
"""A weight made ready for one kernel: float32 ``[rows, in]`` to float32 ``[rows, out]``."""


@dataclass(frozen=True)
class Kernel:
    """``pack(weight [out, in], bias [out] or None)`` gives the callable; ``tolerance`` is its largest error relative
    to the largest output, by which a start-up check tells a working kernel from a broken one. A packed weight takes
    ``bytes_per_weight``."""

    name: str
    pack: Callable[[torch.Tensor, torch.Tensor | None], Packed]
    tolerance: float
    bytes_per_weight: int


def _pack_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Packed:
    linear = torch.nn.functional.linear
    return lambda x: linear(x, weight, bias)


def _pack_mkldnn(weight: torch.Tensor, bias: torch.Tensor | None) -> Packed:
    ops = torch.ops.mkldnn
    packed = ops._reorder_linear_weight(weight, None)
    linear = ops._linear_pointwise.default
    return lambda x: linear(x, packed, bias, "none", [], "")


def _pack_fp16(weight: torch.Tensor, bias: torch.Tensor | None) -> Packed:
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    linear = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: linear(x, packed)


def _pack_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Packed:
    linear = torch.nn.functional.linear
    narrow, narrow_bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    return lambda x: linear(x.bfloat16(), narrow, narrow_bias).float()


KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel("fp32", _pack_fp32, 1e-5, 4),
        Kernel("mkldnn", _pack_mkldnn, 1e-5, 4),
        Kernel("fp16", _pack_fp16, 2e-3, 2),
        Kernel("bf16", _pack_bf16, 3e-2, 2),
    )
}
