"""Makes ``tests/golden/logprobs_smollm2.json``: log probabilities that ``transformers`` computes in fp32.

For some cases of ``reference_smollm2.json``: those of all prompt tokens but the first and of the first greedy tokens,
and at the place of each the five likeliest tokens with theirs, best first.

Run once, after and as ``make_reference.py``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from make_reference import ROOT, load

GOLDEN = ROOT / "tests" / "golden"
CASES = ("chat_short", "story", "chinese", "code_python")
GENERATED = 24
TOP = 5


@torch.inference_mode()
def logprobs(model: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Log probabilities behind every token of prompt and answer."""
    tokens = [*case["prompt"], *case["tokens"][:GENERATED]]
    scores = torch.log_softmax(model(torch.tensor([tokens[:-1]])).logits[0].double(), dim=-1)
    top = scores.topk(TOP)
    return {
        "name": case["name"],
        "chosen": rounded(scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]),
        "top_ids": top.indices.tolist(),
        "top_logprobs": [rounded(row) for row in top.values],
    }


def rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--out", type=Path, default=GOLDEN / "logprobs_smollm2.json")
    args = parser.parse_args()
    cases = json.loads((GOLDEN / "reference_smollm2.json").read_text(encoding="utf-8"))["cases"]
    _, model = load(args.gguf)
    found = [logprobs(model, case) for case in cases if case["name"] in CASES]
    args.out.write_text(json.dumps({"model": args.gguf.name, "top": TOP, "cases": found}) + "\n")


if __name__ == "__main__":
    main()
