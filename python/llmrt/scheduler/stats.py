"""Counters of the scheduler since start."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmrt import wire

_REASONS = {wire.STOP: "stop", wire.LENGTH: "length", wire.ABORT: "abort", wire.ERROR: "error"}


@dataclass
class Counters:
    """``finished`` counts ended requests by their finish reason on the wire."""

    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: list[int] = field(default_factory=lambda: [0] * len(_REASONS))

    def as_dict(self) -> dict[str, float]:
        """By metric name."""
        return {
            "num_preemptions_total": self.preemptions,
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generated_tokens,
            **{f"requests_{name}_total": self.finished[reason] for reason, name in _REASONS.items()},
        }
