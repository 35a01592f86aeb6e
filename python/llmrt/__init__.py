"""llmrt: a serving runtime for large language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrt.config import ConfigError
    from llmrt.llm import LLM, AsyncLLM, CompletionOutput, Logprob, RequestError, RequestOutput, SamplingParams
    from llmrt.model_config import ModelError
    from llmrt.supervisor.errors import StartError

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "Logprob",
    "ModelError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StartError",
]

_HOMES = {"ConfigError": "llmrt.config", "ModelError": "llmrt.model_config", "StartError": "llmrt.supervisor.errors"}


def __getattr__(name: str) -> Any:
    """Imports what is asked for: ``import llmrt`` alone stays cheap, for the processes that need none of it too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "llmrt.llm")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
