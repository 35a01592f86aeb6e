//! How a text falls into the words that are tokenized each by itself, without backtracking.
//!
//! The expressions of the known families all end in `\s+(?!\S)|\s+`: of spaces before a word, the last one is left to
//! the word. An automaton cannot look ahead, so it matches `\s+` alone and the last space is given back afterwards.

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, MatchKind, PatternID};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

/// The expression that the library's `ByteLevel` splits by, up to its spaces.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// Expressions of published `tokenizer.json` files, up to their spaces: GPT-2 (as a step of its own), Llama 3, Qwen 2
/// and 3, Qwen 3.5, Mistral's Tekken, gpt-oss.
pub(super) const KNOWN: [&str; 6] = [
    GPT2,
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    ),
];

const SPACES: &str = r"|\s+(?!\S)|\s+";
/// Number of the pattern that stands for [`SPACES`].
const SPACES_ID: PatternID = PatternID::new_unchecked(1);

/// States that an automaton has built are forgotten beyond this size. A page of English takes some 100 KB.
const STATES_BYTES: usize = 1 << 20;

/// The steps of a pre-tokenizer before its bytes are spelled.
pub(super) struct Splitter {
    steps: Vec<Step>,
}

enum Step {
    /// Every digit is a word.
    Digits,
    Expression(Box<Expression>),
}

impl Splitter {
    /// The steps of a byte-level pre-tokenizer; none where one of them is not known here.
    pub fn new(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let single = std::slice::from_ref(pre_tokenizer);
        let steps = match pre_tokenizer {
            PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
            _ => single,
        };
        let (PreTokenizerWrapper::ByteLevel(last), before) = steps.split_last()? else {
            return None;
        };
        if last.add_prefix_space {
            return None;
        }
        let mut steps: Vec<Step> = before.iter().map(step).collect::<Option<_>>()?;
        if last.use_regex {
            steps.push(Step::Expression(Box::new(Expression::new(GPT2)?)));
        }
        Some(Self { steps })
    }

    /// Calls `each` with the words of `text`, in order.
    pub fn split<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        split(&self.steps, text, each);
    }
}

fn step(step: &PreTokenizerWrapper) -> Option<Step> {
    match step {
        PreTokenizerWrapper::Digits(digits) => digits.individual_digits.then_some(Step::Digits),
        PreTokenizerWrapper::Split(Split {
            pattern: SplitPattern::Regex(expression),
            behavior: SplitDelimiterBehavior::Isolated,
            invert: false,
            ..
        }) => {
            let words = expression.strip_suffix(SPACES)?;
            let known = KNOWN.iter().find(|known| **known == words)?;
            Some(Step::Expression(Box::new(Expression::new(known)?)))
        }
        _ => None,
    }
}

fn split<'t>(steps: &[Step], text: &'t str, each: &mut dyn FnMut(&'t str)) {
    if text.is_empty() {
        return;
    }
    match steps.split_first() {
        None => each(text),
        Some((Step::Digits, rest)) => {
            for part in text.split_inclusive(char::is_numeric) {
                let digit = part.chars().next_back().filter(|c| c.is_numeric());
                let (before, digit) = part.split_at(part.len() - digit.map_or(0, char::len_utf8));
                split(rest, before, each);
                split(rest, digit, each);
            }
        }
        Some((Step::Expression(expression), [])) => expression.split(text, each),
        Some((Step::Expression(expression), rest)) => {
            expression.split(text, &mut |word| split(rest, word, each));
        }
    }
}

/// One expression as an automaton that builds its states as texts need them.
struct Expression {
    dfa: DFA,
    caches: Pool<Cache, Box<dyn Fn() -> Cache + Send + Sync>>,
}

impl Expression {
    fn new(words: &str) -> Option<Self> {
        let config = DFA::config()
            .match_kind(MatchKind::LeftmostFirst)
            .cache_capacity(STATES_BYTES)
            .skip_cache_capacity_check(true);
        let dfa = DFA::builder()
            .configure(config)
            .build_many(&[words, r"\s+"]);
        let dfa = dfa.ok()?;
        let of = dfa.clone();
        let create: Box<dyn Fn() -> Cache + Send + Sync> = Box::new(move || of.create_cache());
        Some(Self {
            dfa,
            caches: Pool::new(create),
        })
    }

    fn split<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        let mut cache = self.caches.get();
        let mut begin = 0;
        while begin < text.len() {
            let input = Input::new(text).range(begin..).anchored(Anchored::Yes);
            // Neither bytes to stop at nor a limit of clearings are configured, so a search cannot fail.
            let found = self.dfa.try_search_fwd(&mut cache, &input).ok().flatten();
            let end = match found {
                Some(found) if found.pattern() == SPACES_ID => {
                    before_last_space(text, begin, found.offset())
                }
                Some(found) if found.offset() > begin => found.offset(),
                // Every character is in a class of each expression; the self-check would tell otherwise.
                _ => text.len(),
            };
            each(&text[begin..end]);
            begin = end;
        }
    }
}

/// End of the word made of the spaces `begin..end`: of several before a word, the last is the word's.
fn before_last_space(text: &str, begin: usize, end: usize) -> usize {
    if end == text.len() {
        return end;
    }
    let last = text[begin..end]
        .chars()
        .next_back()
        .map_or(0, char::len_utf8);
    if end - last > begin { end - last } else { end }
}
