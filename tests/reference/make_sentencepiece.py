"""Makes ``tests/golden/tokenizer_sentencepiece.json``: a small SentencePiece BPE model and what it makes of strings.

The model has the options of Llama 2's: byte fallback, digits one by one, a dummy prefix, whitespace kept. The file
holds its pieces (text, score, type as in GGUF) and, for each string, the token ids with and without dummy prefix.

Run once, after ``make_tokenizer.py`` whose strings it takes, in an environment with ``sentencepiece``::

    python tests/reference/make_sentencepiece.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import sentencepiece

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden"
SPECIAL = ["<s>", "</s>", "<unk>", "<|tool|>"]


def train(text: Path, prefix: Path, add_dummy_prefix: bool) -> sentencepiece.SentencePieceProcessor:
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        split_digits=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<|tool|>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def piece_type(model: sentencepiece.SentencePieceProcessor, index: int) -> int:
    """The number that GGUF gives the type of a piece."""
    if model.is_unknown(index):
        return 2
    if model.is_control(index):
        return 3
    if model.is_byte(index):
        return 6
    return 4 if model.id_to_piece(index) == "<|tool|>" else 1


def main() -> None:
    rows = json.loads((GOLDEN / "tokenizer_smollm2.json").read_text(encoding="utf-8"))
    # SentencePiece reads the text of control tokens as plain text, and cuts strings at NUL.
    strings = [text for text, _ in rows if "\0" not in text and not any(token in text for token in SPECIAL)]
    models = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        lines = "\n".join(text.replace("\n", " ") for text in strings)
        text.write_text(f"{lines}\n{Path(__file__).read_text(encoding='utf-8')}", encoding="utf-8")
        for add_dummy_prefix in (True, False):
            model = train(text, Path(folder, f"m{add_dummy_prefix}"), add_dummy_prefix)
            pieces = [
                [model.id_to_piece(index), model.get_score(index), piece_type(model, index)]
                for index in range(model.get_piece_size())
            ]
            # After a user-defined piece llama.cpp puts another prefix and SentencePiece none: no case for that.
            extra = [" <|tool|>"] if add_dummy_prefix else ["a<|tool|>b", " <|tool|> "]
            cases = [[text, model.encode(text)] for text in [*strings[:330], *extra]]
            models.append({"add_space_prefix": add_dummy_prefix, "pieces": pieces, "cases": cases})
    out = GOLDEN / "tokenizer_sentencepiece.json"
    out.write_text(json.dumps(models, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{len(models)} models, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
