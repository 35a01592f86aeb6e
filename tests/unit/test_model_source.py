"""Finding models: folders, GGUF files, the hub; what is read beside the weights; what the errors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from llmrt.model_config import ModelError
from llmrt.model_source import resolve
from tests.unit.test_model_config import LLAMA


def folder(path: Path, **files: dict[str, Any]) -> Path:
    """A model folder as far as resolving looks, with ``files`` (names without ``.json``) on top."""
    path.mkdir(parents=True, exist_ok=True)
    save_file({"x": torch.zeros(1)}, path / "model.safetensors")
    for name, value in {"config": LLAMA, "tokenizer": {}, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def test_a_folder(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "tiny",
        tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ messages }}"},
        generation_config={"eos_token_id": [7, 9, 7]},
    )
    source = resolve(str(path))
    assert (source.name, source.path, source.format) == ("tiny", path, "safetensors")
    assert source.tokenizer == path / "tokenizer.json"
    assert (source.bos_token, source.eos_token, source.chat_template) == ("<s>", "</s>", "{{ messages }}")
    assert source.eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(5, None, (5,)), ([5, 6], {}, (5, 6)), (5, {"eos_token_id": 8}, (8,)), (5, {"eos_token_id": None}, (5,))],
)
def test_where_the_ends_come_from(
    tmp_path: Path, config: Any, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    files = {} if generation is None else {"generation_config": generation}
    path = folder(tmp_path / "tiny", config={**LLAMA, "eos_token_id": config}, **files)
    assert resolve(str(path)).eos_token_ids == expected


def test_chat_templates_in_a_list_and_in_a_file(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    path = folder(tmp_path / "tiny", tokenizer_config={"chat_template": named})
    assert resolve(str(path)).chat_template == "plain"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named[:1]}))
    assert resolve(str(path)).chat_template is None
    (path / "chat_template.jinja").write_text("from the file")
    assert resolve(str(path)).chat_template == "from the file"


def test_a_hub_id_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = folder(tmp_path / "snapshots" / "0123", generation_config={"eos_token_id": 3})
    asked = []

    def snapshot_download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(local)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = resolve("owner/tiny")
    assert (source.name, source.path, source.eos_token_ids) == ("owner/tiny", local, (3,))
    [(repo_id, patterns)] = asked
    assert repo_id == "owner/tiny" and "*.safetensors" in patterns and not {"*", "*.py", "*.bin"} & set(patterns)


@pytest.mark.parametrize(
    "error",
    [LocalEntryNotFoundError("offline"), HFValidationError("bad name"), ConnectionError("no route"), OSError()],
)
def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(repo_id: str, **_: Any) -> str:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match=r"owner/tiny is no local path.*Check the name and the network"):
        resolve("owner/tiny")


@pytest.mark.parametrize("model", ["", "  ", "./none", "/none/such", "~/none", "a/b/c", "none.gguf", "none"])
def test_what_is_not_there_never_asks_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    def snapshot_download(repo_id: str, **_: Any) -> str:
        raise AssertionError(f"{repo_id!r} was looked up")

    monkeypatch.chdir(folder(tmp_path / "here"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match=r"give a \.gguf file, a model folder or a hub id"):
        resolve(model)


def test_incomplete_folders_say_what_they_lack(tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny")
    for file, message in (
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "has no .safetensors file"),
        ("config.json", "has no config.json"),
    ):
        (path / file).unlink()
        with pytest.raises(ModelError, match=message):
            resolve(str(path))


MALFORMED: dict[str, dict[str, Any]] = {
    "eos_token_id must be a whole number, not 'two'": {"generation_config": {"eos_token_id": "two"}},
    "eos_token_id must be a whole number, not 'x'": {"config": {**LLAMA, "eos_token_id": "x"}},
    "eos_token_id must be a whole number, not None": {"generation_config": {"eos_token_id": [1, None]}},
    "eos_token_id must be a whole number, not {}": {"generation_config": {"eos_token_id": {}}},
    "eos_token_id must be a whole number, not True": {"generation_config": {"eos_token_id": True}},
    "eos_token_id -1 is no token": {"generation_config": {"eos_token_id": -1}},
    "eos_token_id 50 is no token of a vocabulary of 50": {"generation_config": {"eos_token_id": [2, 50]}},
    "TypeError": {"tokenizer_config": {"chat_template": ["x"]}},
    "a special token is int": {"tokenizer_config": {"eos_token": {"content": 3}}},
    "KeyError": {"tokenizer_config": {"chat_template": [{"template": "x"}]}},
    "the chat template is int": {"tokenizer_config": {"chat_template": 3}},
    "a special token is list": {"tokenizer_config": {"bos_token": ["<s>"]}},
    "num_heads|num_attention_heads": {"config": {k: v for k, v in LLAMA.items() if k != "num_attention_heads"}},
}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "name", "template", "factor", "rope_type", "rope_theta"]), inner)
    ),
    max_leaves=6,
)
MEMBERS = [
    *(("config", name) for name in [*LLAMA, "eos_token_id", "head_dim", "rope_scaling", "rope_parameters"]),
    ("generation_config", "eos_token_id"),
    *(("tokenizer_config", name) for name in ("bos_token", "eos_token", "chat_template")),
]


@settings(deadline=None)
@given(member=st.sampled_from(MEMBERS), value=JSON)
def test_any_value_of_a_member_is_read_or_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, member: tuple[str, str], value: Any
) -> None:
    file, name = member
    files: dict[str, dict[str, Any]] = {"config": dict(LLAMA), "generation_config": {}, "tokenizer_config": {}}
    files[file][name] = value
    path = folder(tmp_path_factory.getbasetemp() / "any", **files)
    try:
        source = resolve(str(path))
    except ModelError:
        return
    assert all(type(id) is int and 0 <= id < source.config.vocab_size for id in source.eos_token_ids)
    texts = (source.bos_token, source.eos_token, source.chat_template)
    assert all(text is None or isinstance(text, str) for text in texts)


@pytest.mark.parametrize("model", ["a" * 300, "~nobody-of-that-name/model"])
def test_names_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        resolve(model)


def test_a_folder_nested_beyond_measure(tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny")
    (path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        resolve(str(path))


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_files_are_model_errors(tmp_path: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(str(folder(tmp_path / "tiny", **MALFORMED[message])))


def test_files_that_are_not_json_or_not_gguf(tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny")
    for content, message in ((b"{", "cannot be read as JSON"), (b"\xff", "cannot be read"), (b"[]", "JSON object")):
        (path / "config.json").write_bytes(content)
        with pytest.raises(ModelError, match=message):
            resolve(str(path))
    with pytest.raises(ModelError, match="is not a GGUF file"):
        resolve(str(path / "config.json"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        resolve(str(tmp_path / "broken.gguf"))
