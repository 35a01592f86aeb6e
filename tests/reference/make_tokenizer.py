# ruff: noqa: RUF001 (look-alike characters are the point)
"""Makes ``tests/golden/tokenizer_smollm2.json``: strings of many scripts and their token ids in the default model.

The ids are those of ``transformers``, its pre-tokenizer mended: the GGUF conversion drops the digit splitter.

Run once, in an environment with ``transformers`` and ``gguf``::

    python tests/reference/make_tokenizer.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import json
import os
import random
import unicodedata
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
COUNT = 1200

PASSAGES = [
    "The quick brown fox jumps over the lazy dog, doesn't it? We've seen it; they'll see it, I'd say.",
    "Größere Straßen, naïve cafés, œuvre, Zażółć gęślą jaźń, ğüşıöç, Þórður, Ærøskøbing, ñandú.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Київ — столиця України.",
    "Ελληνική γλώσσα: «Ὦ ξεῖν’, ἀγγέλλειν Λακεδαιμονίοις».",
    "敏捷的棕色狐狸跳过了懒狗。北京是中国的首都,也是一座历史悠久的城市。臺灣繁體中文測試。",
    "いろはにほへと ちりぬるを。カタカナと漢字の混在テスト、ﾊﾝｶｸも。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم، مكتوب على ثوب أخضر ١٢٣٤.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३",
    "আমি বাংলায় গান গাই। தமிழ் மொழி மிகவும் பழமையானது. తెలుగు భాష.",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "ខ្មែរ ភាសា ລາວ ພາສາ မြန်မာဘာသာ ქართული ენა Հայերեն ትግርኛ አማርኛ",
    "👨‍👩‍👧‍👦🏖️🌞🎉🇫🇷🇯🇵👍🏽🧑🏿‍🚀❤️‍🔥☺️ 1️⃣ 🫠🪿",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α∧¬β → ∫₀^∞ e^{−x²}dx = √π/2; ½ ⅓ Ⅷ ② ¹²³ ₄₅",
    "e\u0301 a\u0308 n\u0303 o\u0302\u0323 \u1e9b\u0323 Å \ufb01 \u212b ﬀ ㎏ Ǆ İ ı ſ",
    "3.14159 1,234,567.89 0x1F 1e-10 2026-11-29T19:05:00Z +49 (0)30 1234567 192.168.0.1 50% $9.99",
    'def f(x: int) -> int:\n    """doc"""\n\treturn x ** 2  # comment\n\n\nif x:\n    print(f(3))\n',
    "fn main() { let mut v: Vec<&'static str> = vec![]; v.iter().map(|s| s.len()).sum::<usize>(); }\r\n",
    '<html><body class="a b">&nbsp;</body></html> SELECT * FROM t WHERE a<>\'b\' -- x\n{"k": [1, 2, null]}',
    "https://example.org/a/b?c=d&e=%20#frag user@example.com C:\\Users\\x /usr/bin/env snake_case camelCase SHOUT",
    "Don't 'quote' 'S 'T 'RE it's IT'S they’re 'll'd'm o'clock rock'n'roll ''' ' '",
    "\u200b\u200d\u2060\ufeff\u00a0\u3000\u2003\u202eabc\u202c\u0085\u2028\u2029 \x00\x07\x1b[0m\x7f",
]
WHITESPACE = [
    " ",
    "  ",
    "    ",
    " " * 17,
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\t\t\t",
    " \n ",
    "\n   ",
    "\u00a0",
    "\u3000",
    "   \t\n  x",
]
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<repo_name>",
    "<file_sep>",
    "<|im_start",
    "im_end|>",
    "<empty_output>",
]


def random_character(rng: random.Random) -> str:
    while True:
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000)])
        character = chr(code)
        if unicodedata.category(character) not in ("Cs", "Cn", "Co"):
            return character


def slice_of(rng: random.Random) -> str:
    passage = rng.choice(PASSAGES)
    start = rng.randrange(len(passage))
    return passage[start : start + rng.randrange(1, 24)]


def make_string(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        return slice_of(rng)
    if kind < 0.55:
        return "".join(slice_of(rng) + rng.choice(["", *WHITESPACE]) for _ in range(rng.randrange(1, 4)))
    if kind < 0.7:
        return "".join(rng.choice([slice_of(rng), rng.choice(SPECIAL), rng.choice(WHITESPACE)]) for _ in range(4))
    if kind < 0.8:
        return "".join(random_character(rng) for _ in range(rng.randrange(1, 12)))
    if kind < 0.9:
        return "".join(rng.choice("0123456789 .,-:٣५²Ⅷ x") for _ in range(rng.randrange(1, 16)))
    return "".join(rng.choice(WHITESPACE) for _ in range(rng.randrange(1, 5))) + rng.choice(["", "a", "1", "é", "。"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    gguf = parser.parse_args().gguf
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).backend_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    rng = random.Random(7)
    strings = list(dict.fromkeys(["", *PASSAGES, *WHITESPACE, *SPECIAL, *(make_string(rng) for _ in range(COUNT))]))
    rows = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in strings]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    out = ROOT / "tests/golden/tokenizer_smollm2.json"
    out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(rows)} strings, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
