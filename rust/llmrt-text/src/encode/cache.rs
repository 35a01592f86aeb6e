//! Token ids of pieces that came before.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use clru::{CLruCache, CLruCacheConfig, WeightScale};

/// Shorter pieces are encoded sooner than found.
const SHORTEST: usize = 48;
/// What an entry costs beside its text and ids.
const OVERHEAD: usize = 128;

type Pieces = CLruCache<Box<str>, Arc<[u32]>, RandomState, Bytes>;

/// Keeps the ids of recent pieces, up to a number of bytes. Entries are found by the whole text: a hash that two texts
/// share is no error. The lock is held to find an entry, some microseconds for a long one, never to encode.
pub(super) struct PieceCache(Mutex<Pieces>);

impl PieceCache {
    /// None when nothing is to be kept.
    pub fn new(bytes: usize) -> Option<Self> {
        let config = CLruCacheConfig::new(NonZeroUsize::new(bytes)?)
            .with_hasher(RandomState::new())
            .with_scale(Bytes);
        Some(Self(Mutex::new(CLruCache::with_config(config))))
    }

    /// Appends the ids of `piece`: those that are kept, else those of `encode`.
    pub fn extend<E>(
        &self,
        piece: &str,
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        if piece.len() < SHORTEST {
            return encode(ids);
        }
        let kept = self.lock().get(piece).cloned();
        if let Some(kept) = kept {
            ids.extend_from_slice(&kept);
            return Ok(());
        }
        let begin = ids.len();
        encode(ids)?;
        let entry = (Box::from(piece), Arc::from(&ids[begin..]));
        // A piece that is larger than the cache is not kept.
        let _ = self.lock().put_with_weight(entry.0, entry.1);
        Ok(())
    }

    /// No entry is half made when a thread panics.
    fn lock(&self) -> MutexGuard<'_, Pieces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Bytes;

impl WeightScale<Box<str>, Arc<[u32]>> for Bytes {
    fn weight(&self, piece: &Box<str>, ids: &Arc<[u32]>) -> usize {
        piece.len() + size_of_val::<[u32]>(ids) + OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Whether the ids of `piece` were kept.
    fn is_kept(cache: &PieceCache, piece: &str) -> bool {
        let mut kept = true;
        let encode = |ids: &mut Vec<u32>| {
            kept = false;
            ids.extend(piece.bytes().map(u32::from));
            Ok::<_, Infallible>(())
        };
        let mut ids = vec![7];
        cache.extend(piece, &mut ids, encode).unwrap();
        let expected: Vec<u32> = [7]
            .into_iter()
            .chain(piece.bytes().map(u32::from))
            .collect();
        assert_eq!(ids, expected);
        kept
    }

    #[test]
    fn the_longest_unused_piece_leaves_first() {
        let piece = |name: char| name.to_string().repeat(100);
        // 100 bytes of text, 400 of ids.
        let cache = PieceCache::new(3 * (500 + OVERHEAD) + 10).unwrap();
        for name in ['a', 'b', 'c'] {
            assert!(!is_kept(&cache, &piece(name)));
        }
        assert!(is_kept(&cache, &piece('a')));
        assert!(!is_kept(&cache, &piece('d')));
        assert!(is_kept(&cache, &piece('a')));
        assert!(!is_kept(&cache, &piece('b')));
    }

    #[test]
    fn what_is_short_or_larger_than_the_cache_is_not_kept() {
        let cache = PieceCache::new(4096).unwrap();
        for length in [SHORTEST - 1, 1000] {
            for _ in 0..2 {
                assert!(!is_kept(&cache, &"x".repeat(length)));
            }
        }
        assert!(!is_kept(&cache, &"x".repeat(SHORTEST)));
        assert!(is_kept(&cache, &"x".repeat(SHORTEST)));
        assert!(PieceCache::new(0).is_none());
    }
}
