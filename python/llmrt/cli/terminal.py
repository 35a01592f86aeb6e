"""The terminal side of a conversation: input, commands, and the look of the output."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import unicodedata
from collections.abc import Callable

from llmrt.cli.chat_client import ChatError
from llmrt.cli.conversation import Conversation

PROMPT = ">>> "
MORE = "... "
FENCE = '"""'
HELP = """  /reset         forget what was said
  /system TEXT   set the system prompt and start over; without TEXT show it, with "-" remove it
  /stats         what the answers took so far
  /save FILE     write the conversation as JSON
  /quit          end (also Ctrl-D)
A line that ends with \\ goes on; lines between two \"\"\" are one message. // starts a message with a slash.
Ctrl-C stops the answer that is running."""


class Terminal:
    """Reads messages and commands, shows answers."""

    def __init__(self) -> None:
        self._plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb" or not sys.stdout.isatty()
        self._commands: dict[str, Callable[[Conversation, str], None]] = {
            "/help": lambda _, __: print(HELP),
            "/reset": self._reset,
            "/system": self._system,
            "/stats": self._stats,
            "/save": self._save,
        }

    def note(self, text: str) -> None:
        """Shows something that is not part of the conversation."""
        print(text if self._plain else f"\x1b[2m{text}\x1b[0m", flush=True)

    def talk(self, conversation: Conversation) -> None:
        """Runs until the user has enough."""
        with contextlib.suppress(ImportError):
            # Line editing and recall for input(), where Python has them.
            import readline  # noqa: F401
        self.note(f"{conversation.model} at {conversation.client.url}; /help lists the commands")
        while True:
            try:
                text = self._read()
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                print()
                return
            if text.startswith("/") and not text.startswith("//"):
                command, _, argument = text.strip().partition(" ")
                if command in ("/quit", "/exit"):
                    return
                self._command(conversation, command, argument.strip())
            elif text.strip():
                self._say(conversation, text.removeprefix("/") if text.startswith("//") else text)

    def _read(self) -> str:
        """One message, which may have several lines."""
        line = input(PROMPT)
        if line.startswith(FENCE):
            lines = [line.removeprefix(FENCE)]
            while FENCE not in lines[-1]:
                lines.append(input(MORE))
            lines[-1] = lines[-1].partition(FENCE)[0]
            return "\n".join(lines).strip("\n")
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(MORE))
        return "\n".join(lines)

    def _say(self, conversation: Conversation, text: str) -> None:
        try:
            answer = conversation.say(text, self._show)
        except ChatError as error:
            print()
            self.note(f"{error}")
            return
        print()
        self.note(f"[{answer.line()}]")

    def _show(self, piece: str) -> None:
        # A model's control characters must not reach the terminal.
        clean = "".join(letter if letter in "\n\t" or unicodedata.category(letter) != "Cc" else "" for letter in piece)
        sys.stdout.write(clean)
        sys.stdout.flush()

    def _command(self, conversation: Conversation, command: str, argument: str) -> None:
        action = self._commands.get(command)
        if action is None:
            self.note(f"there is no command {command}; /help lists them")
            return
        action(conversation, argument)

    def _reset(self, conversation: Conversation, argument: str) -> None:
        conversation.reset()
        self.note("what was said is forgotten")

    def _system(self, conversation: Conversation, argument: str) -> None:
        if not argument:
            self.note(conversation.system or "there is no system prompt")
            return
        conversation.system = None if argument == "-" else argument
        conversation.reset()
        self.note("the system prompt is set, and what was said is forgotten")

    def _stats(self, conversation: Conversation, argument: str) -> None:
        answers = conversation.answers
        if not answers:
            self.note("there was no answer yet")
            return
        firsts = [answer.ttft for answer in answers if answer.ttft is not None]
        rates = [rate for answer in answers if (rate := answer.tokens_per_second) is not None]
        self.note(f"answers            {len(answers)}")
        self.note(f"answer tokens      {sum(answer.completion_tokens or 0 for answer in answers)}")
        self.note(f"prompt tokens      {sum(answer.prompt_tokens or 0 for answer in answers)}")
        self.note(f"of them cached     {sum(answer.cached_tokens or 0 for answer in answers)}")
        if firsts:
            self.note(f"TTFT, median       {statistics.median(firsts) * 1000:.0f} ms")
        if rates:
            self.note(f"tok/s, median      {statistics.median(rates):.1f}")

    def _save(self, conversation: Conversation, argument: str) -> None:
        if not argument:
            self.note("name a file: /save FILE")
            return
        content = {"model": conversation.model, "messages": conversation.all_messages()}
        try:
            with open(os.path.expanduser(argument), "x", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False, indent=2)
                file.write("\n")
        except OSError as error:
            self.note(f"{argument}: {error.strerror}")
            return
        self.note(f"saved to {argument}")
