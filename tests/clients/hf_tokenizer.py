"""A Hugging Face tokenizer folder out of a GGUF file, for clients that count or send token ids."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def write_hf_tokenizer(model: Path, folder: Path) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json``; for byte-level BPE with digits one by one."""
    fields = gguf.GGUFReader(model).fields
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    bpe = models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"].contents()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": tokens[fields[f"tokenizer.ggml.{name}_token_id"].contents()] for name in ("bos", "eos")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
