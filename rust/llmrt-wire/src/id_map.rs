//! Tables by request id.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::RequestId;

/// A table by request id. It does not resist chosen keys: entry workers count their ids up.
pub type IdMap<V> = HashMap<RequestId, V, BuildHasherDefault<IdHasher>>;

/// Hasher of [`RequestId`]s. They are made one after the other: mixing their bits is enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The multiplier of Fibonacci hashing. Its upper half carries the worker and shard, which stand in the high
        // bits of an id, down to the low bits, by which the table chooses a place.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn neighbours_do_not_meet() {
        let hasher = BuildHasherDefault::<IdHasher>::default();
        let ids = (0..4).flat_map(|worker| (0..4096).map(move |n| RequestId::new(worker, 1, n)));
        let hashes: Vec<u64> = ids.map(|id| hasher.hash_one(id)).collect();
        let places: HashSet<u64> = hashes.iter().map(|hash| hash % (1 << 15)).collect();
        let tags: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
        // As many places as random numbers would take: 2^15 (1 - exp(-1/2)).
        assert!(places.len() > 12_000, "{} places", places.len());
        assert_eq!(tags.len(), 128, "the bits that a table compares first");
    }
}
