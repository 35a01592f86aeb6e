//! The proof that a tokenizer's fast path may be used: the library's ids for a fixed, wide corpus.

use std::fmt::Write;

use super::Encoder;

/// What prompts are made of, and what has broken tokenizers: contractions, spaces of every kind and number, numbers,
/// marks that belong to the letter before, scripts, emoji, code, words without end.
const TEXTS: [&str; 29] = [
    "The quick brown fox can't; they're I'VE we'll He'd it'S o'clock 'tis ''s 's' \u{2019}s",
    "a b  c   d    e \t f\t\tg \n h\n\ni \r\n j\r\n\r\nk \n\n\n l  \n  m\n ",
    "  leading",
    "trailing  ",
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n",
    "\n ",
    "\t",
    "a\u{a0}b\u{2003}c\u{3000} d\u{85}e\u{2028}f",
    "0 1 12 123 1234 12345 1234567 3.14159 1,000,000 -5 +7 1e10 0x1F \u{b2}\u{bd}\u{2167} \u{661}\u{662}\u{663} \u{ff11}\u{ff12}",
    "x1y22z333 a1 1a 1.a A1B2 v2.0.1-rc3 2026-11-30T04:15:39Z",
    "camelCase PascalCase snake_case SCREAMING_CASE kebab-case HTTPServer iOS McDonald \u{1c5}\u{1c8}",
    "fn main() {\n    println!(\"{}\", a[0] + b->c);\n}\n\n# if x == y and not z:\n\treturn None // ok\n",
    "<a href=\"https://example.com/p?q=1&r=2#top\">x</a> ${y} \\n \\\\ ~`@%^&*()_+-=[]{}|;:,./<>?!",
    "\u{e9}t\u{e9} na\u{ef}ve e\u{301} n\u{303} a\u{308}\u{323} \u{1e69}\u{323}\u{307} \u{212b} \u{fb01} \u{df} \u{130}\u{131} \u{17f}",
    "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}, \u{43c}\u{438}\u{440}! \u{393}\u{3b5}\u{3b9}\u{3ac} \u{3c3}\u{3bf}\u{3c5} \u{540}\u{561}\u{575} \u{10d2}\u{10d0}",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{3002}\u{65e5}\u{672c}\u{8a9e}\u{306e}\u{30c6}\u{30b9}\u{30c8} \u{d55c}\u{ad6d}\u{c5b4} \u{1112}\u{1161}\u{11ab}",
    "\u{645}\u{631}\u{62d}\u{628}\u{627} \u{5e9}\u{5dc}\u{5d5}\u{5b9}\u{5dd} \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35} \u{bb5}\u{ba3}\u{bcd}",
    "\u{1f600}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f3f3}\u{fe0f}\u{200d}\u{1f308} \u{1f1e9}\u{1f1ea} \u{2764}\u{fe0f} \u{1f44d}\u{1f3fd}",
    "\u{0}\u{1}\u{7f}\u{80}\u{ad}\u{200b}\u{200e}\u{feff}\u{fffd}\u{fffe}\u{e000}\u{10ffff} \u{1d49c}\u{10400}\u{20000}",
    "\u{a0}\u{a0}x \u{a0}y\u{a0} z \u{2003}\u{2003}",
    "'",
    "'s",
    " 's",
    "a's'S'sa",
    "don't DON'T d'Re \u{17f}'\u{17f}",
];

/// Characters of one kind follow each other in blocks of this size.
const BLOCK: u32 = 16;
/// Steps through the vocabulary.
const VOCABULARY: usize = 61;

/// A text that `encoder` does not encode as `library` does, if the corpus has one. Takes some ten milliseconds.
pub(super) fn difference(library: &tokenizers::Tokenizer, encoder: &Encoder) -> Option<String> {
    let equal = |text: &str| {
        [false, true].into_iter().all(|add_special| {
            let expected = library.encode_fast(text, add_special);
            match (expected, encoder.encode(text, add_special)) {
                (Ok(expected), Ok(ids)) => expected.get_ids() == ids,
                _ => false,
            }
        })
    };
    corpus(library).into_iter().find(|text| !equal(text))
}

fn corpus(library: &tokenizers::Tokenizer) -> Vec<String> {
    let mut texts: Vec<String> = TEXTS.map(str::to_owned).into();
    texts.extend([characters(), special(library), vocabulary(library)]);
    // Longer than any merge that is kept in place, and than any token.
    texts.extend(
        ["a", "ab", " ", "\n", "=", "1", "\u{e9}", "\u{597d}"].map(|unit| unit.repeat(150)),
    );
    texts
}

/// One character of each block of Unicode, as a word, in a word, and beside spaces and numbers.
fn characters() -> String {
    let mut text = String::new();
    let planes = (0x20..0x3000).step_by(BLOCK as usize);
    let far = (0x3000..0x2_0000).step_by(16 * BLOCK as usize);
    for (turn, code) in (0..).zip(planes.chain(far)) {
        // Not always the first one of its block.
        let Some(c) = char::from_u32(code + turn % BLOCK) else {
            continue;
        };
        let _ = match turn % 3 {
            0 => write!(text, " {c}x{c}"),
            1 => write!(text, "{c} 1{c}"),
            _ => write!(text, "  {c}'s"),
        };
    }
    text
}

/// Added tokens beside words, spaces and each other.
fn special(library: &tokenizers::Tokenizer) -> String {
    let mut tokens: Vec<_> = library.get_added_tokens_decoder().into_iter().collect();
    tokens.sort_unstable_by_key(|(id, _)| *id);
    let contents = tokens.into_iter().take(64).map(|(_, token)| token.content);
    contents.fold(String::from("<|"), |mut text, content| {
        let _ = write!(text, "a{content} b {content}\n{content}{content}1 <|");
        text
    })
}

/// Tokens of the vocabulary one after the other, so that words begin with any of them.
fn vocabulary(library: &tokenizers::Tokenizer) -> String {
    let size = library.get_vocab_size(false);
    let ids: Vec<u32> = (0..size as u32)
        .step_by(size / (VOCABULARY * 8) + 1)
        .collect();
    library.decode(&ids, true).unwrap_or_default()
}
