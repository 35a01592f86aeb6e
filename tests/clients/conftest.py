from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrt import model_source
from support.server import Server

from .hf_tokenizer import write_hf_tokenizer

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """One server with the default model for all clients."""
    with_model = Server("--kv-cache-memory", "0.5")
    yield with_model
    assert with_model.stop() == 0, with_model.log


@pytest.fixture(scope="package")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's tokenizer as a Hugging Face folder."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_hf_tokenizer(Path(model_source.resolve(None).path), folder)
    return folder
