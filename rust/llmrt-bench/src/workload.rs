//! Prompts: made up from a seed, or read from a file.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::config::{ConfigError, Endpoint, Workload};

/// Frequent words: with the space before it, each is one token in the common byte-pair vocabularies.
const WORDS: [&str; 160] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
    "they", "which", "one", "you", "were", "all", "her", "she", "there", "would", "their", "we",
    "him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so", "up", "said",
    "what", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new", "some",
    "could", "these", "two", "may", "first", "then", "do", "any", "like", "my", "now", "over",
    "such", "our", "man", "me", "even", "most", "made", "after", "also", "did", "many", "must",
    "before", "back", "see", "through", "way", "where", "get", "much", "go", "well", "your",
    "know", "should", "down", "work", "year", "because", "come", "people", "just", "say", "each",
    "those", "take", "day", "good", "how", "long", "own", "too", "little", "use", "very", "great",
    "still", "men", "here", "life", "both", "between", "old", "under", "last", "never", "place",
    "same", "another", "think", "house", "while", "high", "right", "might", "came", "off", "find",
    "states", "since", "used", "give", "against", "three", "himself", "look", "few", "general",
    "hand", "school", "part", "small", "number", "war",
];

/// A prompt of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Messages(Value),
}

/// One request of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub prompt: Prompt,
    pub max_tokens: u32,
}

impl Workload {
    /// The requests: `warmup` of them, then `measured`, or one per line of the file if that is `None`.
    ///
    /// # Errors
    /// A file that cannot be read or has a line of another form.
    pub fn items(
        &self,
        endpoint: Endpoint,
        warmup: usize,
        measured: Option<usize>,
        seed: u64,
    ) -> Result<Vec<Item>, ConfigError> {
        let mut maker = Maker::new(seed);
        let count = warmup + measured.unwrap_or(0);
        match self {
            Self::Random {
                input_len,
                output_len,
                range_ratio,
                token_ids,
            } => Ok((0..count)
                .map(|_| {
                    let input = maker.length(*input_len, *range_ratio);
                    let max_tokens = maker.length(*output_len, *range_ratio);
                    Item {
                        prompt: maker.prompt(*token_ids, input, 0),
                        max_tokens,
                    }
                })
                .collect()),
            Self::SharedPrefix {
                num_prefixes,
                prefix_len,
                suffix_len,
                output_len,
                token_ids,
            } => {
                let prefixes: Vec<Prompt> = (0..*num_prefixes)
                    .map(|_| maker.prompt(*token_ids, *prefix_len, *suffix_len))
                    .collect();
                Ok((0..count)
                    .map(|index| Item {
                        prompt: maker.extended(
                            &prefixes[index % num_prefixes],
                            *token_ids,
                            *suffix_len,
                        ),
                        max_tokens: *output_len,
                    })
                    .collect())
            }
            Self::File { path, output_len } => {
                let lines = read_lines(path, endpoint, *output_len)?;
                let count = warmup + measured.unwrap_or(lines.len());
                // The warm-up takes the last lines, so that the measured ones are cold where that is possible.
                let first = (lines.len() - warmup % lines.len()) % lines.len();
                Ok((0..count)
                    .map(|index| lines[(first + index) % lines.len()].clone())
                    .collect())
            }
        }
    }
}

/// Makes prompts from one stream of random numbers.
struct Maker {
    random: fastrand::Rng,
}

impl Maker {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Uniform in `mean * (1 +- ratio)`, at least 1.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn length(&mut self, mean: u32, ratio: f64) -> u32 {
        let spread = (f64::from(mean) * ratio).floor() as u32;
        self.random.u32(mean - spread..=mean + spread).max(1)
    }

    fn prompt(&mut self, token_ids: Option<(u32, u32)>, length: u32, room: u32) -> Prompt {
        let empty = match token_ids {
            Some(_) => Prompt::Ids(Vec::with_capacity((length + room) as usize)),
            None => Prompt::Text(String::with_capacity((length + room) as usize * 5)),
        };
        self.extend(empty, token_ids, length)
    }

    fn extended(&mut self, prefix: &Prompt, token_ids: Option<(u32, u32)>, length: u32) -> Prompt {
        self.extend(prefix.clone(), token_ids, length)
    }

    fn extend(&mut self, mut prompt: Prompt, token_ids: Option<(u32, u32)>, length: u32) -> Prompt {
        match &mut prompt {
            Prompt::Text(text) => {
                for _ in 0..length {
                    if !text.is_empty() {
                        text.push(' ');
                    }
                    text.push_str(WORDS[self.random.usize(..WORDS.len())]);
                }
            }
            Prompt::Ids(ids) => {
                let (low, high) = token_ids.unwrap_or((0, 1));
                ids.extend((0..length).map(|_| self.random.u32(low..high)));
            }
            Prompt::Messages(_) => {}
        }
        prompt
    }
}

#[derive(Deserialize)]
struct Line {
    prompt: Option<TextOrIds>,
    messages: Option<Vec<Value>>,
    max_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrIds {
    Text(String),
    Ids(Vec<u32>),
}

fn read_lines(path: &Path, endpoint: Endpoint, output_len: u32) -> Result<Vec<Item>, ConfigError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{shown}: {e}")))?;
    let items = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            read_line(line, endpoint, output_len)
                .map_err(|reason| ConfigError(format!("{shown}, line {}: {reason}", index + 1)))
        })
        .collect::<Result<Vec<_>, _>>()?;
    if items.is_empty() {
        return Err(ConfigError(format!("{shown} has no prompts")));
    }
    Ok(items)
}

fn read_line(line: &str, endpoint: Endpoint, output_len: u32) -> Result<Item, String> {
    let line: Line = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let prompt = match (line.prompt, line.messages) {
        (Some(TextOrIds::Text(text)), None) => Prompt::Text(text),
        (Some(TextOrIds::Ids(_)), None) if endpoint == Endpoint::Chat => {
            return Err("a prompt of token ids needs the completions endpoint".into());
        }
        (Some(TextOrIds::Ids(ids)), None) => Prompt::Ids(ids),
        (None, Some(_)) if endpoint == Endpoint::Completions => {
            return Err("'messages' need the chat endpoint".into());
        }
        (None, Some(messages)) => Prompt::Messages(Value::Array(messages)),
        _ => return Err("must have either 'prompt' or 'messages'".into()),
    };
    let max_tokens = line.max_tokens.unwrap_or(output_len);
    if max_tokens == 0 {
        return Err("'max_tokens' must be at least 1".into());
    }
    Ok(Item { prompt, max_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn words(item: &Item) -> Vec<&str> {
        match &item.prompt {
            Prompt::Text(text) => text.split(' ').collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn random_prompts_follow_lengths_and_seed() {
        let workload = Workload::Random {
            input_len: 20,
            output_len: 10,
            range_ratio: 0.5,
            token_ids: None,
        };
        let items = workload.items(Endpoint::Chat, 5, Some(500), 3).unwrap();
        assert_eq!(items.len(), 505);
        let lengths: Vec<usize> = items.iter().map(|item| words(item).len()).collect();
        assert_eq!(
            (lengths.iter().min(), lengths.iter().max()),
            (Some(&10), Some(&30))
        );
        let outputs: Vec<u32> = items.iter().map(|item| item.max_tokens).collect();
        assert_eq!(
            (outputs.iter().min(), outputs.iter().max()),
            (Some(&5), Some(&15))
        );
        assert_eq!(
            items,
            workload.items(Endpoint::Chat, 5, Some(500), 3).unwrap()
        );
        assert_ne!(
            items,
            workload.items(Endpoint::Chat, 5, Some(500), 4).unwrap()
        );
    }

    #[test]
    fn token_ids_stay_in_their_range() {
        let workload = Workload::Random {
            input_len: 300,
            output_len: 1,
            range_ratio: 0.0,
            token_ids: Some((7, 10)),
        };
        let items = workload
            .items(Endpoint::Completions, 0, Some(2), 0)
            .unwrap();
        let Prompt::Ids(ids) = &items[0].prompt else {
            panic!()
        };
        assert_eq!(ids.len(), 300);
        for id in 7..10 {
            assert!(ids.contains(&id));
        }
        assert!(ids.iter().all(|id| (7..10).contains(id)));
    }

    #[test]
    fn prefixes_are_shared_and_suffixes_are_not() {
        let workload = Workload::SharedPrefix {
            num_prefixes: 2,
            prefix_len: 12,
            suffix_len: 12,
            output_len: 1,
            token_ids: None,
        };
        let items = workload.items(Endpoint::Chat, 0, Some(4), 0).unwrap();
        let all: Vec<Vec<&str>> = items.iter().map(words).collect();
        assert_eq!(all[0][..12], all[2][..12]);
        assert_eq!(all[1][..12], all[3][..12]);
        assert_ne!(all[0][..12], all[1][..12]);
        assert_ne!(all[0][12..], all[2][12..]);
        assert!(all.iter().all(|words| words.len() == 24));
    }

    fn from_file(
        text: &str,
        endpoint: Endpoint,
        warmup: usize,
        measured: Option<usize>,
    ) -> Result<Vec<Item>, ConfigError> {
        let path = std::env::temp_dir().join(format!(
            "llmrt-bench-{}-{}.jsonl",
            std::process::id(),
            fastrand::u64(..)
        ));
        std::fs::File::create(&path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let items = Workload::File {
            path: path.clone(),
            output_len: 9,
        }
        .items(endpoint, warmup, measured, 0);
        std::fs::remove_file(path).unwrap();
        items
    }

    #[test]
    fn a_file_is_repeated_and_its_own_limits_win() {
        let text = "{\"prompt\":\"a\"}\n\n{\"messages\":[{\"role\":\"user\"}],\"max_tokens\":2,\"id\":7}\n";
        let items = from_file(text, Endpoint::Chat, 1, Some(3)).unwrap();
        let tokens: Vec<u32> = items.iter().map(|item| item.max_tokens).collect();
        assert_eq!(tokens, [2, 9, 2, 9]);
        assert_eq!(from_file(text, Endpoint::Chat, 0, None).unwrap().len(), 2);
        let ids = from_file("{\"prompt\":[1,2]}", Endpoint::Completions, 0, None).unwrap();
        assert_eq!(ids[0].prompt, Prompt::Ids(vec![1, 2]));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, endpoint, word) in [
            ("{\"prompt\":\"a\"}\n{", Endpoint::Chat, "line 2"),
            ("{}", Endpoint::Chat, "either"),
            ("{\"prompt\":[1]}", Endpoint::Chat, "token ids"),
            ("{\"messages\":[]}", Endpoint::Completions, "chat endpoint"),
            (
                "{\"prompt\":\"a\",\"max_tokens\":0}",
                Endpoint::Chat,
                "max_tokens",
            ),
            ("\n", Endpoint::Chat, "no prompts"),
        ] {
            let error = from_file(text, endpoint, 0, None).unwrap_err();
            assert!(error.0.contains(word), "{text}: {error}");
        }
    }
}
