//! Logprobs as clients read them: in the form of chats, of completions, and of prompts.

use std::borrow::Cow;

use llmrt_text::Tokenizer;
use llmrt_text::decode::Decoding;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::told::Scored;

/// JSON has no infinity: what is less likely than this is told as this.
const LEAST: f32 = -9999.0;

/// How tokens are named: by their text, or by their ids.
#[derive(Clone, Debug)]
pub struct Names {
    tokenizer: Tokenizer,
    as_ids: bool,
}

impl Names {
    pub fn new(tokenizer: Tokenizer, as_ids: bool) -> Self {
        Self { tokenizer, as_ids }
    }

    fn bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.tokenizer.decoder().bytes(id)
    }

    /// The token's text; a part of a character stands as U+FFFD.
    fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
    }

    fn name(&self, id: u32) -> String {
        if self.as_ids {
            format!("token_id:{id}")
        } else {
            self.text(id)
        }
    }
}

/// Where tokens begin in a text that grows by them.
#[derive(Clone, Debug)]
pub struct Offsets {
    decoding: Decoding,
    /// Characters so far.
    chars: usize,
    /// What the token at hand completes; kept for its memory.
    piece: String,
}

impl Offsets {
    /// For a text that has `chars` characters and continues the tokens of `prompt_tail`; with `skip_special`, special
    /// tokens have no text.
    pub fn new(names: &Names, prompt_tail: &[u32], skip_special: bool, chars: usize) -> Self {
        Self {
            decoding: names.tokenizer.decoder().start(prompt_tail, skip_special),
            chars,
            piece: String::new(),
        }
    }

    /// Where `token` begins, in characters.
    fn next(&mut self, names: &Names, token: u32) -> usize {
        let start = self.chars;
        let decoder = names.tokenizer.decoder();
        decoder.push(&mut self.decoding, token, &mut self.piece);
        self.chars += self.piece.chars().count();
        self.piece.clear();
        start
    }
}

/// The form of chats: a list of tokens.
#[derive(Serialize)]
pub struct ChatLogprobs<'n> {
    content: Vec<ChatToken<'n>>,
    refusal: Option<()>,
}

impl<'n> ChatLogprobs<'n> {
    /// Of these tokens, with `most` alternatives each.
    pub fn new<'t>(names: &'n Names, tokens: impl Iterator<Item = Scored<'t>>, most: u32) -> Self {
        let token = |scored: Scored| ChatToken {
            token: Named::new(names, scored.id, scored.logprob.unwrap_or_default()),
            top_logprobs: scored
                .top(most)
                .map(|(id, logprob)| Named::new(names, id, logprob))
                .collect(),
        };
        Self {
            content: tokens.map(token).collect(),
            refusal: None,
        }
    }
}

#[derive(Serialize)]
struct ChatToken<'n> {
    #[serde(flatten)]
    token: Named<'n>,
    top_logprobs: Vec<Named<'n>>,
}

#[derive(Serialize)]
struct Named<'n> {
    token: String,
    logprob: f32,
    /// A list of numbers: a token may be part of a character.
    bytes: Cow<'n, [u8]>,
}

impl<'n> Named<'n> {
    fn new(names: &'n Names, id: u32, logprob: f32) -> Self {
        Self {
            token: names.name(id),
            logprob: finite(logprob),
            bytes: names.bytes(id),
        }
    }
}

/// The form of completions: a list for each kind of fact.
#[derive(Default, Serialize)]
pub struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Alternatives>>,
}

impl CompletionLogprobs {
    /// Whether there is no token in it.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a token with `most` alternatives; it stands among them, too.
    pub fn push(&mut self, names: &Names, offsets: &mut Offsets, scored: Scored, most: u32) {
        let alternatives = scored.logprob.map(|logprob| {
            let mut named = vec![(names.name(scored.id), finite(logprob))];
            for (id, logprob) in scored.top(most).filter(|(id, _)| *id != scored.id) {
                let name = names.name(id);
                // Parts of characters share their text; the likelier one has come first.
                if named.iter().all(|(known, _)| *known != name) {
                    named.push((name, finite(logprob)));
                }
            }
            Alternatives(named)
        });
        self.text_offset.push(offsets.next(names, scored.id));
        self.token_logprobs.push(scored.logprob.map(finite));
        self.tokens.push(names.name(scored.id));
        self.top_logprobs.push(alternatives);
    }
}

struct Alternatives(Vec<(String, f32)>);

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, logprob)| (name, logprob)))
    }
}

/// The form of prompts: for each token a map from ids, the token's own first; `null` for the first token.
pub struct PromptForm(Vec<Option<Vec<(u32, PromptToken)>>>);

#[derive(Serialize)]
struct PromptToken {
    logprob: f32,
    /// 1 for the likeliest; `null` for a token that is not among those asked for.
    rank: Option<usize>,
    decoded_token: String,
}

impl PromptForm {
    /// Of these tokens, with `most` alternatives each.
    pub fn new<'t>(names: &Names, tokens: impl Iterator<Item = Scored<'t>>, most: u32) -> Self {
        let told = |id, logprob, rank| PromptToken {
            logprob: finite(logprob),
            rank,
            decoded_token: names.text(id),
        };
        let token = |scored: Scored| {
            let own = scored.logprob?;
            let mut map = Vec::with_capacity(1 + most as usize);
            let rank = scored.top(most).position(|(id, _)| id == scored.id);
            map.push((scored.id, told(scored.id, own, rank.map(|rank| rank + 1))));
            for (rank, (id, logprob)) in scored.top(most).enumerate() {
                if id != scored.id {
                    map.push((id, told(id, logprob, Some(rank + 1))));
                }
            }
            Some(map)
        };
        Self(tokens.map(token).collect())
    }
}

impl Serialize for PromptForm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Map<'m>(&'m [(u32, PromptToken)]);
        impl Serialize for Map<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(Some(self.0.len()))?;
                for (id, told) in self.0 {
                    map.serialize_entry(&id.to_string(), told)?;
                }
                map.end()
            }
        }
        serializer.collect_seq(self.0.iter().map(|map| map.as_deref().map(Map)))
    }
}

fn finite(logprob: f32) -> f32 {
    // A NaN is told as the least, too.
    if logprob >= LEAST { logprob } else { LEAST }
}
