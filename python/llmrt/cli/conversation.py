"""A conversation with a model: its messages, and what each answer took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llmrt.cli.chat_client import Client


@dataclass
class Answer:
    """One answer. Times in seconds; token counts are the server's, or ``None`` when it did not get to say."""

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft: float | None = None
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, by the time after the first."""
        if self.ttft is None or not self.completion_tokens or self.completion_tokens < 2:
            return None
        spent = self.seconds - self.ttft
        return (self.completion_tokens - 1) / spent if spent > 0 else None

    def line(self) -> str:
        """Statistics in one line."""
        parts = []
        if self.ttft is not None:
            parts.append(f"TTFT {self.ttft * 1000:.0f} ms")
        if (rate := self.tokens_per_second) is not None:
            parts.append(f"{rate:.1f} tok/s")
        if self.completion_tokens is not None:
            parts.append(f"{self.completion_tokens} tokens")
        if self.prompt_tokens is not None:
            cached = f" ({self.cached_tokens} cached)" if self.cached_tokens is not None else ""
            parts.append(f"prompt {self.prompt_tokens}{cached}")
        if self.finish_reason not in (None, "stop"):
            parts.append(str(self.finish_reason))
        return ", ".join(parts)


@dataclass
class Conversation:
    """What was said. ``parameters`` are further fields of every request."""

    client: Client
    model: str
    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def all_messages(self) -> list[dict[str, str]]:
        """The system prompt, if any, and everything said since."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def reset(self) -> None:
        """Forgets what was said; keeps the system prompt and the statistics."""
        self.messages.clear()

    def say(self, text: str, show: Callable[[str], object]) -> Answer:
        """Asks, and hands the answer to ``show`` piece by piece.

        Raises :class:`~llmrt.cli.chat_client.ChatError`. When it or an interrupt ends the answer early, what has
        arrived stays in the conversation; a question without any answer does not.
        """
        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        began = time.monotonic()
        try:
            with self.client.chat(self._body()) as chunks:
                for chunk in chunks:
                    self._take(chunk, answer, began, show)
        except KeyboardInterrupt:
            answer.finish_reason = "cancelled"
        finally:
            answer.seconds = time.monotonic() - began
            if answer.text or answer.finish_reason not in (None, "cancelled"):
                self.messages.append({"role": "assistant", "content": answer.text})
                self.answers.append(answer)
            else:
                self.messages.pop()
        return answer

    def _body(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": self.all_messages(),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.parameters,
        }

    @staticmethod
    def _take(chunk: dict[str, Any], answer: Answer, began: float, show: Callable[[str], object]) -> None:
        for choice in chunk.get("choices", []):
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            if piece := choice.get("delta", {}).get("content"):
                if answer.ttft is None:
                    answer.ttft = time.monotonic() - began
                answer.text += piece
                show(piece)
        if usage := chunk.get("usage"):
            answer.prompt_tokens = usage.get("prompt_tokens")
            answer.completion_tokens = usage.get("completion_tokens")
            answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
