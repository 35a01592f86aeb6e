"""What differs between model families."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """``output_bias``: with attention biases, the output projection has one too.

    Biases of q, k, v and norms of q and k are part of the configuration already.
    """

    output_bias: bool = False
