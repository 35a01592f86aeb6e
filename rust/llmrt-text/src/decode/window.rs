//! Decoding through a window: for tokenizers whose decoder looks beyond one token.
//!
//! The last tokens that were shown (the context) are decoded again together with those that were not (pending); what
//! stands behind the context's own text is new. A decoder may change the context's text once more tokens follow: what
//! was shown stays shown, and the pending tokens are then decoded behind a neutral token instead.

use std::collections::HashSet;
use std::sync::Arc;

use tokenizers::Tokenizer;

/// A character has at most four bytes, so four pending tokens without a whole one are invalid.
const MAX_PENDING: usize = 4;
/// Prompt tokens that serve as the first context.
const MAX_CONTEXT: usize = 8;

/// What the window needs of a tokenizer.
pub struct Window {
    tokenizer: Arc<Tokenizer>,
    special: HashSet<u32>,
    /// A plain token: a context that leaves the text behind it alone.
    neutral: Vec<u32>,
}

/// A request's window. Both lists are bounded.
#[derive(Clone, Debug)]
pub struct WindowState {
    context: Vec<u32>,
    context_text: String,
    pending: Vec<u32>,
}

#[cfg(test)]
impl WindowState {
    /// Tokens that are kept.
    pub fn len(&self) -> usize {
        self.context.len() + self.pending.len()
    }
}

impl Window {
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let special = added
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| id)
            .collect();
        let neutral = ["a", "A", "0", "."]
            .iter()
            .find_map(|token| tokenizer.token_to_id(token));
        Self {
            special,
            neutral: neutral.into_iter().collect(),
            tokenizer,
        }
    }

    pub fn start(&self, prompt_tail: &[u32], skip_special: bool) -> WindowState {
        let mut context: Vec<u32> = prompt_tail
            .iter()
            .copied()
            .filter(|&token| self.shows(token, skip_special))
            .collect();
        context.drain(..context.len().saturating_sub(MAX_CONTEXT));
        let context_text = self.decode(&context);
        let mut state = WindowState {
            context,
            context_text,
            pending: Vec::new(),
        };
        if state.context_text.ends_with(char::REPLACEMENT_CHARACTER) {
            self.neutralize(&mut state);
        }
        state
    }

    pub fn push(&self, state: &mut WindowState, token: u32, skip_special: bool, out: &mut String) {
        if !self.shows(token, skip_special) {
            return;
        }
        state.pending.push(token);
        let whole = self.decode(&[state.context.as_slice(), &state.pending].concat());
        let new = whole.strip_prefix(&state.context_text);
        let broken = whole.ends_with(char::REPLACEMENT_CHARACTER);
        if (broken || new == Some("")) && state.pending.len() < MAX_PENDING {
            return;
        }
        match new {
            Some(new) => out.push_str(new),
            None => out.push_str(&self.apart(&state.pending)),
        }
        if broken {
            self.neutralize(state);
        } else {
            state.context = std::mem::take(&mut state.pending);
            state.context_text = self.decode(&state.context);
        }
    }

    pub fn finish(&self, state: &mut WindowState, out: &mut String) {
        let whole = self.decode(&[state.context.as_slice(), &state.pending].concat());
        match whole.strip_prefix(&state.context_text) {
            Some(new) => out.push_str(new),
            None => out.push_str(&self.apart(&state.pending)),
        }
        state.pending.clear();
    }

    /// The text of one token without any context.
    pub fn alone(&self, token: u32) -> String {
        self.apart(&[token])
    }

    /// Whether a token has text. Tokens without are kept out of the window: behind a window of such tokens alone, a
    /// decoder would take the text for the beginning of one.
    fn shows(&self, token: u32, skip_special: bool) -> bool {
        !(skip_special && self.special.contains(&token))
            && self.tokenizer.id_to_token(token).is_some()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, false).unwrap_or_default()
    }

    /// The text of tokens without their context.
    fn apart(&self, tokens: &[u32]) -> String {
        let neutral = self.decode(&self.neutral);
        let whole = self.decode(&[self.neutral.as_slice(), tokens].concat());
        whole.strip_prefix(&neutral).unwrap_or(&whole).to_owned()
    }

    fn neutralize(&self, state: &mut WindowState) {
        state.pending.clear();
        state.context.clone_from(&self.neutral);
        state.context_text = self.decode(&state.context);
    }
}
