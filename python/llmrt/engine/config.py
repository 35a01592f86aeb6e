"""What the supervisor tells the scheduler process, as JSON."""

from __future__ import annotations

import msgspec

from llmrt.topology import Topology


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options by the names of :mod:`llmrt.config`; ``num_threads`` and ``kv_cache_bytes`` 0 are automatic.

    ``executor`` is ``module:name`` of what makes the executor from a model source and the runner's options.
    ``step_deadline`` is how long, in seconds, a peer may be silent. ``parent`` is the supervisor's process id.
    """

    topology: Topology
    model: str | None = None
    executor: str = "llmrt.runner.executor:InlineExecutor"
    max_model_len: int | None = None
    dtype: str = "auto"
    schedule_policy: str = "fcfs"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_num_queued_reqs: int = 1024
    enable_prefix_caching: bool = True
    kv_cache_bytes: int = 0
    num_pages: int | None = None
    num_threads: int = 0
    step_deadline: float = 60.0
    parent: int | None = None
    log_level: str = "info"
    log_format: str = "text"

    @property
    def credit(self) -> int:
        """Requests that may be open at once, and that one entry worker may have submitted and not yet seen end."""
        return self.max_num_seqs + self.max_num_queued_reqs

    def to_json(self) -> bytes:
        """The configuration as a JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, raw: bytes) -> EngineConfig:
        """Reads :meth:`to_json`. Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
        return msgspec.json.decode(raw, type=cls)
