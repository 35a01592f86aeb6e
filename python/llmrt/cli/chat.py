"""``llmrt chat``: a conversation in the terminal, or one prompt from a pipe."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrt.cli.chat_client import ChatError, Client, NoServerError
from llmrt.cli.conversation import Conversation
from llmrt.cli.own_server import own_server
from llmrt.cli.terminal import Terminal

DEFAULT_URL = "http://127.0.0.1:8000"
FAILURE = 1
INTERRUPTED = 130


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=program,
        description="Talk to a model. Without --url the server at 127.0.0.1:8000 answers if it has the model; "
        "else one is started for as long as the conversation lasts (LLMRT_* variables and LLMRT_CONFIG reach its "
        "model, scheduler and logs; its front door is open to this machine alone).",
        epilog="When input or output is no terminal, the whole input is one prompt and the output is the answer.",
        allow_abbrev=False,
    )
    flags.add_argument("model", nargs="?", metavar="MODEL", help="name at the server, or GGUF file, folder or hub id")
    flags.add_argument("--url", metavar="URL", help=f"server to talk to (default: {DEFAULT_URL})")
    flags.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of that server (default: LLMRT_API_KEY; with --url, OPENAI_API_KEY after it)",
    )
    flags.add_argument("--system", metavar="TEXT", help="system prompt")
    flags.add_argument(
        "--max-tokens", type=int, metavar="N", help="longest answer (default: what the context has room for)"
    )
    flags.add_argument("--temperature", type=float, metavar="X", help="0 is greedy (default: the server's)")
    flags.add_argument("--seed", type=int, metavar="N", help="seed of the sampling")
    flags.add_argument(
        "--set",
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=JSON",
        help="any other field of the request, such as top_p=0.9; may be repeated",
    )
    flags.add_argument(
        "--start-timeout", type=float, default=600.0, metavar="X", help="seconds that a model may load (default: 600)"
    )
    return flags


def main(arguments: Sequence[str] | None = None, program: str = "llmrt chat") -> int:
    """Runs until the conversation ends; returns the exit code."""
    options = parser(program).parse_args(arguments)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    terminal = Terminal()
    try:
        # What is piped in is there before a server need be.
        prompt = None if interactive else sys.stdin.read()
        if prompt is not None and not prompt.strip():
            raise ChatError("the input is empty; pipe a prompt in")
        with _server(options, terminal.note if interactive else lambda _: None) as (client, model):
            conversation = Conversation(client, model, options.system, _parameters(options))
            if prompt is None:
                terminal.talk(conversation)
            else:
                _answer_once(conversation, prompt)
    except ChatError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads on. What is still buffered must not fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    return 0


def _answer_once(conversation: Conversation, prompt: str) -> None:
    def show(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    answer = conversation.say(prompt, show)
    if not answer.text.endswith("\n"):
        show("\n")
    if answer.finish_reason == "cancelled":
        raise KeyboardInterrupt


@contextmanager
def _server(options: argparse.Namespace, note: Any) -> Iterator[tuple[Client, str]]:
    """A server that is ready, and the name of the model there."""
    found = _running(options)
    if found is not None:
        client, model = found
        client.wait_ready(options.start_timeout, lambda: note("the server is loading its model ..."))
        yield client, model
        return
    note("starting a server ...")
    with own_server(options.model, options.start_timeout) as client:
        yield client, _only(client)


def _running(options: argparse.Namespace) -> tuple[Client, str] | None:
    """The server to talk to and its name of the model; ``None`` when one has to be started."""
    client = Client(options.url or DEFAULT_URL, _key(options))
    try:
        names = [str(each["id"]) for each in client.models()]
    except NoServerError as error:
        if options.url is None:
            return None
        raise ChatError(f"{error}; start one with llmrt-serve, or leave --url out") from error
    except ChatError:
        # Something else listens at the default address.
        if options.url is None:
            return None
        raise
    model = _match(options.model, names)
    if model is None and options.url is not None:
        raise ChatError(f"the server at {client.url} has no model {options.model!r}; it has {', '.join(names)}")
    return None if model is None else (client, model)


def _key(options: argparse.Namespace) -> str | None:
    """The key that the server is told, if any. One for other servers goes to none that the user has not named."""
    if options.api_key is not None:
        return str(options.api_key)
    # A server takes several from the same variable.
    own = os.environ.get("LLMRT_API_KEY", "").split(",")[0]
    return own or (os.environ.get("OPENAI_API_KEY") if options.url is not None else None) or None


def _match(wanted: str | None, names: list[str]) -> str | None:
    if wanted is None:
        return names[0] if names else None
    # A file or a folder is served by its name.
    path = Path(wanted)
    return next((name for name in (wanted, path.name, path.stem) if name in names), None)


def _only(client: Client) -> str:
    return str(client.models()[0]["id"])


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(options, name) for name in ("max_tokens", "temperature", "seed")}
    return {**{name: value for name, value in named.items() if value is not None}, **dict(options.set)}


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=JSON, not {text!r}")
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


if __name__ == "__main__":
    sys.exit(main())
