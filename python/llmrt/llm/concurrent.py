"""``AsyncLLM``: answers, for programs that run an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Iterator
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmrt.llm import body
from llmrt.llm.answer import Growing, RequestOutput
from llmrt.llm.body import Prompt
from llmrt.llm.calls import take
from llmrt.llm.engine import Engine
from llmrt.llm.options import configuration
from llmrt.llm.params import SamplingParams

if TYPE_CHECKING:
    from llmrt._core import Client


class AsyncLLM:
    """Like :class:`~llmrt.llm.blocking.LLM`, for any number of tasks of an event loop and without threads of theirs.

    Construction waits until the model is loaded: make it before the loop runs, or with ``asyncio.to_thread``.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **options: Any) -> None:
        self._engine = Engine(configuration(model, options))
        self._news: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _News] = weakref.WeakKeyDictionary()
        self._finalizer = weakref.finalize(self, self._engine.close)

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answers to one prompt, a text, token ids or a conversation, each time with all of their text so far.

        The last one is ``finished`` and has the counts. Cancelling the task or closing the generator cancels the
        request. Raises :class:`~llmrt.llm.answer.RequestError` when it is refused or fails.
        """
        request = body.request(prompt, sampling_params, stream=True)
        news = self._of_this_loop()
        response = news.client.request("POST", request.path, request.body)
        growing = Growing(request.choices)
        try:
            with news.of(response.key) as arrived:
                while not growing.done:
                    await arrived.wait()
                    arrived.clear()
                    text = take(self._engine, response, growing)
                    if text and not (output := growing.output).finished:
                        yield output
            yield growing.output
        finally:
            response.close()

    async def close(self) -> None:
        """Ends the processes; open requests fail, and so do later ones."""
        await asyncio.to_thread(self._finalizer)
        for loop, news in list(self._news.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.stop, loop)
        self._news.clear()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncLLM({self._engine.model!r})"

    def _of_this_loop(self) -> _News:
        loop = asyncio.get_running_loop()
        if loop not in self._news:
            self._news[loop] = _News(loop, self._engine.client())
        return self._news[loop]


class _News:
    """Wakes the tasks of one loop whose responses have news: one wake-up of the loop for all of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self.client = client
        self._waiting: dict[int, asyncio.Event] = {}
        loop.add_reader(client.fileno(), self._pass_on)

    @contextlib.contextmanager
    def of(self, key: int) -> Iterator[asyncio.Event]:
        """An event that is set whenever the response has news."""
        # News that came before are not lost: nobody has taken them yet, as that is done on this loop too.
        self._waiting[key] = event = asyncio.Event()
        try:
            yield event
        finally:
            del self._waiting[key]

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Passes the last news on, once nothing more can come."""
        loop.remove_reader(self.client.fileno())
        self._pass_on()

    def _pass_on(self) -> None:
        for key in self.client.ready():
            if key in self._waiting:
                self._waiting[key].set()
