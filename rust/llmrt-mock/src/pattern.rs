//! Which tokens an answer is made of.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};

/// The tokens of all answers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Pattern {
    /// These ids, again and again.
    Tokens {
        #[serde(deserialize_with = "shared")]
        tokens: Arc<[u32]>,
    },
    /// Ids in order, from 0 at each answer's start.
    Count,
    /// Random ids, a function of seed and position; `seed` is for requests that bring none.
    Random { seed: u64 },
    /// The prompt, then the end.
    Echo,
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u32]>, D::Error> {
    Vec::deserialize(deserializer).map(Arc::from)
}

/// The tokens of one answer.
#[derive(Debug)]
pub(crate) enum Script {
    Tokens(Arc<[u32]>),
    Count,
    Random(u64),
}

impl Script {
    /// Token number `position`, before it is known whether it may be one that ends the answer.
    pub(crate) fn token(&self, position: u32, vocab_size: u32) -> u32 {
        match self {
            Self::Tokens(tokens) => tokens[position as usize % tokens.len()],
            Self::Count => position % vocab_size,
            Self::Random(seed) => {
                let bits = mix(seed ^ mix(u64::from(position))) >> 32;
                // Multiply and shift: a share of the vocabulary without a division.
                ((bits * u64::from(vocab_size)) >> 32) as u32
            }
        }
    }
}

/// A counter-based hash: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_start_again_and_counting_wraps() {
        let tokens = Script::Tokens([7, 8, 9].into());
        let read: Vec<u32> = (0..5).map(|n| tokens.token(n, 100)).collect();
        assert_eq!(read, [7, 8, 9, 7, 8]);
        assert_eq!(Script::Count.token(103, 100), 3);
    }

    #[test]
    fn random_tokens_are_repeatable_and_fill_the_vocabulary() {
        let draw = |seed| -> Vec<u32> {
            (0..4000)
                .map(|n| Script::Random(seed).token(n, 50))
                .collect()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let mut counts = [0; 50];
        for token in draw(7) {
            counts[token as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (40..=120).contains(&count)),
            "{counts:?}"
        );
    }
}
