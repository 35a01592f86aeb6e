//! Where a text is cut into pieces: at the added tokens that are found in it before anything else happens.
//!
//! The library finds them leftmost and longest first, and tokenizes what is between by itself. A piece by itself gives
//! what it gives in its text: no token can begin in it and end beyond, or it would have been found there. Tokens that
//! look around themselves (at a word's end, for spaces to swallow) see the end of the piece where they saw the token at
//! which the text was cut; that is the same for them as long as it begins and ends with neither letter nor space.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// A part of a text, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Token(u32),
    Piece(&'t str),
}

/// Finds the tokens at which texts are cut.
pub(super) struct Cuts {
    /// None when there are no tokens.
    found: Option<AhoCorasick>,
    /// For each token that is found: its id, or none where a text must not be cut.
    ids: Vec<Option<u32>>,
}

impl Cuts {
    /// Never cuts.
    pub fn none() -> Self {
        Self {
            found: None,
            ids: Vec::new(),
        }
    }

    /// Cuts where pieces can be handed to the library one by one.
    pub fn between_pieces(library: &tokenizers::Tokenizer) -> Self {
        let tokens = library.get_added_tokens_decoder().into_iter();
        let tokens: Vec<_> = tokens.filter(|(_, token)| !token.normalized).collect();
        let calm = tokens.iter().all(|(_, token)| is_plain(token));
        Self::new(&tokens, |token| {
            is_plain(token) && (calm || is_neutral(token))
        })
    }

    /// Cuts at every added token, so that none is left in a piece; none where some must be looked for otherwise.
    pub fn at_all_tokens(library: &tokenizers::Tokenizer) -> Option<Self> {
        let tokens: Vec<_> = library.get_added_tokens_decoder().into_iter().collect();
        // Normalized tokens are looked for after the others, in normalized text.
        let normalized = tokens.iter().filter(|(_, token)| token.normalized).count();
        let in_one_pass =
            normalized == 0 || (normalized == tokens.len() && library.get_normalizer().is_none());
        let plain = tokens.iter().all(|(_, token)| is_plain(token));
        (in_one_pass && plain).then(|| Self::new(&tokens, |_| true))
    }

    fn new(tokens: &[(u32, AddedToken)], cut: impl Fn(&AddedToken) -> bool) -> Self {
        let tokens: Vec<_> = tokens
            .iter()
            .filter(|(_, token)| !token.content.is_empty())
            .collect();
        let contents = tokens.iter().map(|(_, token)| &token.content);
        let found = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(contents);
        match found {
            Ok(found) if !tokens.is_empty() => Self {
                found: Some(found),
                ids: tokens
                    .iter()
                    .map(|(id, token)| cut(token).then_some(*id))
                    .collect(),
            },
            // Too many tokens for an automaton: pieces are whole texts then.
            _ => Self::none(),
        }
    }

    /// Calls `each` with the tokens and the pieces of `text`, none of them empty.
    pub fn split<'t, E>(
        &self,
        text: &'t str,
        mut each: impl FnMut(Part<'t>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut begin = 0;
        for found in self.found.iter().flat_map(|found| found.find_iter(text)) {
            let Some(id) = self.ids[found.pattern().as_usize()] else {
                continue;
            };
            if begin < found.start() {
                each(Part::Piece(&text[begin..found.start()]))?;
            }
            each(Part::Token(id))?;
            begin = found.end();
        }
        match begin < text.len() {
            true => each(Part::Piece(&text[begin..])),
            false => Ok(()),
        }
    }
}

/// Whether a token is found wherever its text stands, and is no more than that text.
fn is_plain(token: &AddedToken) -> bool {
    !(token.single_word || token.lstrip || token.rstrip)
}

/// Whether a token's neighbours see in it what they see in the end of a text.
fn is_neutral(token: &AddedToken) -> bool {
    let ends = [
        token.content.chars().next(),
        token.content.chars().next_back(),
    ];
    ends.into_iter()
        .flatten()
        .all(|end| end.is_ascii_punctuation() && end != '_')
}
