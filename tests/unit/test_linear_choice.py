"""Which linear kernels may serve together, by times that are given."""

from __future__ import annotations

import pytest

from llmrt.layers import linear_choice

WIDTH = 64


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        # Much faster at one row, but it would round otherwise than at eight.
        ({"fp16": [3.0, 1.0, 1.0, 1.0], "fp32": [1.0, 3.0, 3.0, 3.0]}, ["fp16"] * 4),
        ({"fp16": [1.0, 5.0, 5.0, 5.0], "fp32": [3.0, 1.0, 1.0, 1.0]}, ["fp32"] * 4),
        # Both keep float32.
        ({"fp32": [1.0, 1.0, 1.0, 4.0], "mkldnn": [3.0, 3.0, 3.0, 1.0]}, ["fp32", "fp32", "fp32", "mkldnn"]),
        # Not worth a second copy of the weights.
        ({"fp32": [1.0, 1.0, 1.0, 1.2], "mkldnn": [3.0, 3.0, 3.0, 1.0]}, ["fp32"] * 4),
    ],
)
def test_kernels_of_all_buckets_round_alike(seconds: dict[str, list[float]], chosen: list[str]) -> None:
    assert list(linear_choice._choice(seconds, WIDTH).names) == chosen
