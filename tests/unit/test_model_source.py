"""Finding models: folders, GGUF files, the hub; what is read beside the weights; what the errors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
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
    "ValueError": {"generation_config": {"eos_token_id": "two"}},
    "KeyError": {"tokenizer_config": {"chat_template": [{"template": "x"}]}},
    "the chat template is int": {"tokenizer_config": {"chat_template": 3}},
    "a special token is list": {"tokenizer_config": {"bos_token": ["<s>"]}},
    "num_heads|num_attention_heads": {"config": {k: v for k, v in LLAMA.items() if k != "num_attention_heads"}},
}


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
