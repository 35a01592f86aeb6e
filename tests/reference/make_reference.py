"""Makes ``tests/golden/reference_smollm2.json``: what ``transformers`` computes in fp32 from the default model's GGUF.

For each of 16 prompts: the prompt's token ids, 64 greedy tokens (end-of-sequence does not stop them), the gap between
the two best logits at each of them, and the mean negative log likelihood of the prompt in nats per token.

Run once, in an environment with ``torch``, ``transformers`` and ``gguf``::

    python tests/reference/make_reference.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
NEW_TOKENS = 64
LONG_TOKENS = 1500


def chat(*turns: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    """ChatML text of turns that alternate between user and assistant, open for the assistant's answer."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n"
    for index, turn in enumerate(turns):
        text += f"<|im_start|>{('user', 'assistant')[index % 2]}\n{turn}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


PROMPTS: dict[str, str] = {
    "chat_short": chat("What is the capital of France?"),
    "chat_list": chat("Give me three tips for learning to cook at home."),
    "chat_turns": chat("Hello, who are you?", "I am SmolLM. How can I help?", "Explain how rain forms, for a child."),
    "chat_system": chat("Describe the sea.", system="You answer like a pirate."),
    "chat_numbers": chat("A train leaves at 9:45 and arrives at 13:20. How long is the journey in minutes?"),
    "one_word": "The",
    "story": "Once upon a time, in a village at the foot of a mountain, there lived a clockmaker who",
    "science": "Photosynthesis is the process by which green plants convert light energy into chemical energy. In the",
    "code_python": 'def merge_sorted(a, b):\n    """Merge two sorted lists into one sorted list."""\n    result = []\n',
    "code_rust": "fn main() {\n    let mut counts: HashMap<String, usize> = HashMap::new();\n    for word in text.",
    "json": '{"name": "Ada Lovelace", "born": 1815, "occupation": "mathematician", "known_for": [',
    "chinese": "北京是中国的首都，也是一座历史悠久的城市。",  # noqa: RUF001
    "japanese_korean": "東京は日本の首都です。서울은 대한민국의 수도이며 ",
    "emoji": "I love summer 🌞🏖️! My family 👨‍👩‍👧‍👦 went to the beach and 🎉🎉",
    "latin_scripts": "Zażółć gęślą jaźń. Où est la bibliothèque? Größe, Straße, naïve café; Ελληνικά, русский язык:",
}


def load(gguf: Path) -> tuple[Any, Any]:
    """Tokenizer (digits split one by one, as the model was trained; the conversion drops that) and fp32 model."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    return tokenizer, model.eval()


@torch.inference_mode()
def reference(model: Any, prompt: list[int]) -> dict[str, Any]:
    """Greedy tokens, their top-2 gaps and the prompt's mean NLL."""
    out = model(torch.tensor([prompt]), use_cache=True)
    scores = torch.log_softmax(out.logits[0, :-1].double(), dim=-1)
    nll = -scores.gather(1, torch.tensor(prompt[1:])[:, None]).mean().item() if len(prompt) > 1 else 0.0
    tokens: list[int] = []
    gaps: list[float] = []
    while True:
        best = out.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        if len(tokens) == NEW_TOKENS:
            return {"prompt": prompt, "nll": round(nll, 6), "tokens": tokens, "gaps": gaps}
        out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--long-text", type=Path, default=ROOT / "LICENSE", help="cut to its first 1,500 tokens")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "golden" / "reference_smollm2.json")
    args = parser.parse_args()
    tokenizer, model = load(args.gguf)
    prompts = {name: tokenizer.encode(text, add_special_tokens=False) for name, text in PROMPTS.items()}
    long_text = args.long_text.read_text(encoding="utf-8")
    prompts["long_text"] = tokenizer.encode(long_text, add_special_tokens=False)[:LONG_TOKENS]
    if len(prompts["long_text"]) < LONG_TOKENS:
        parser.error(f"{args.long_text} has fewer than {LONG_TOKENS} tokens")
    cases = []
    for name, prompt in prompts.items():
        cases.append({"name": name, "text": PROMPTS.get(name, ""), **reference(model, prompt)})
        print(f"{name}: {len(prompt)} tokens, NLL {cases[-1]['nll']}, smallest gap {min(cases[-1]['gaps'])}")
    args.out.write_text(json.dumps({"model": args.gguf.name, "cases": cases}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
