"""Makes ``tests/golden/lm_eval_smollm2.json``: the default model's log likelihoods for ``tests/clients/lm_eval``.

For each choice of a question, and for each passage, what ``transformers`` computes in fp32 from the model's GGUF: the
sum of the log probabilities in nats, and whether greedy decoding would have given the same tokens. A choice follows its
question, a passage follows the beginning-of-sequence token.

Run once, in an environment with ``torch``, ``transformers`` and ``gguf``::

    python tests/reference/make_lm_eval.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from make_reference import ROOT, load

TASKS = ROOT / "tests" / "clients" / "lm_eval"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TASKS / name).read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "golden" / "lm_eval_smollm2.json")
    args = parser.parse_args()
    tokenizer, model = load(args.gguf)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    def likelihood(start: list[int], ids: list[int]) -> tuple[float, bool]:
        """Of ``ids[len(start):]``, after ``start``."""
        assert ids[: len(start)] == start
        with torch.inference_mode():
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0, len(start) - 1 : -1].double(), dim=-1)
        rest = torch.tensor(ids[len(start) :])
        total = scores.gather(1, rest[:, None]).sum().item()
        return round(total, 6), bool((scores.argmax(dim=1) == rest).all())

    questions, passages = lines("questions.jsonl"), lines("passages.jsonl")
    choices = []
    for item in questions:
        start = f"Question: {item['question']}\nAnswer:"
        choices.append([likelihood(encode(start), encode(f"{start} {choice}")) for choice in item["choices"]])
    first = [tokenizer.bos_token_id]
    texts = [likelihood(first, first + encode(item["text"])) for item in passages]
    best = [max(range(len(scores)), key=lambda i: scores[i][0]) for scores in choices]
    right = sum(item["answer"] == index for item, index in zip(questions, best, strict=True))
    print(f"{right} of {len(questions)} questions right; passages {[text[0] for text in texts]}")
    facts = {"model": args.gguf.name, "right": right, "choices": choices, "passages": texts}
    args.out.write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
