"""llmrt inside a Python program: the processes and the code path of the server, without a socket to listen on.

:mod:`~llmrt.llm.engine` starts and stops them, :mod:`~llmrt.llm.body` writes requests, :mod:`~llmrt.llm.answer` reads
what comes back; :class:`LLM` and :class:`AsyncLLM` drive both.
"""

from llmrt.llm.answer import CompletionOutput, RequestError, RequestOutput
from llmrt.llm.blocking import LLM
from llmrt.llm.concurrent import AsyncLLM
from llmrt.llm.logprobs import Logprob
from llmrt.llm.params import SamplingParams

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "Logprob", "RequestError", "RequestOutput", "SamplingParams"]
