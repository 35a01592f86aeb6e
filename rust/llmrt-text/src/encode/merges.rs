//! Byte-pair encoding of one word: bytes become tokens, pairs of tokens are merged in the order of their rank.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ahash::RandomState;

/// Words of more symbols are merged through a heap: the time for short ones grows with the square of their length.
const SHORT: usize = 48;

/// No token, no rank.
pub(super) const NONE: u32 = u32::MAX;

/// A merge: the lower its rank, the earlier it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Merge {
    pub rank: u32,
    pub token: u32,
}

const NO_MERGE: Merge = Merge {
    rank: NONE,
    token: NONE,
};

/// The model: the tokens of single bytes, the merges, and words that are tokens without any merge.
pub(super) struct Merges {
    /// Bytes without a token are left out of the result.
    pub bytes: [u32; 256],
    pub pairs: HashMap<(u32, u32), Merge, RandomState>,
    pub whole: HashMap<Box<[u8]>, u32, RandomState>,
}

/// Memory that words are merged in, kept from one to the next.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<u32>,
    /// `merges[i]` is that of the symbols `i` and `i + 1`.
    merges: Vec<Merge>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

/// Neighbours of a symbol. A symbol that was merged into its left one is `NONE`.
#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

impl Merges {
    /// Appends the tokens of `word`.
    pub fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if !self.whole.is_empty()
            && let Some(&token) = self.whole.get(word)
        {
            return out.push(token);
        }
        let tokens = word.iter().map(|&byte| self.bytes[usize::from(byte)]);
        scratch.symbols.clear();
        scratch
            .symbols
            .extend(tokens.filter(|&token| token != NONE));
        match scratch.symbols.len() {
            0..2 => {}
            2..=SHORT => self.merge_short(scratch),
            _ => self.merge_long(scratch),
        }
        out.extend_from_slice(&scratch.symbols);
    }

    #[inline]
    fn merge(&self, left: u32, right: u32) -> Merge {
        self.pairs.get(&(left, right)).copied().unwrap_or(NO_MERGE)
    }

    /// Looks for the lowest rank again and again.
    fn merge_short(
        &self,
        Scratch {
            symbols, merges, ..
        }: &mut Scratch,
    ) {
        merges.clear();
        merges.extend(symbols.windows(2).map(|pair| self.merge(pair[0], pair[1])));
        while let Some((at, merge)) = first_lowest(merges) {
            symbols[at] = merge.token;
            symbols.remove(at + 1);
            merges.remove(at);
            if at < merges.len() {
                merges[at] = self.merge(symbols[at], symbols[at + 1]);
            }
            if at > 0 {
                merges[at - 1] = self.merge(symbols[at - 1], symbols[at]);
            }
        }
    }

    /// Keeps merges in a heap; one whose symbols have changed since is passed over.
    fn merge_long(&self, scratch: &mut Scratch) {
        let Scratch {
            symbols,
            links,
            heap,
            ..
        } = scratch;
        let count = symbols.len() as u32;
        links.clear();
        links.extend((0..count).map(|i| Link {
            before: i.wrapping_sub(1),
            after: if i + 1 < count { i + 1 } else { NONE },
        }));
        heap.clear();
        let entry = |at: u32, left, right| {
            let merge = self.merge(left, right);
            (merge.rank != NONE).then_some(Reverse((merge.rank, at, merge.token)))
        };
        heap.extend((0..count - 1).filter_map(|at| {
            let i = at as usize;
            entry(at, symbols[i], symbols[i + 1])
        }));
        while let Some(Reverse((rank, at, token))) = heap.pop() {
            let (i, after) = (at as usize, links[at as usize].after);
            if symbols[i] == NONE || after == NONE {
                continue;
            }
            let j = after as usize;
            if self.merge(symbols[i], symbols[j]) != (Merge { rank, token }) {
                continue;
            }
            symbols[i] = token;
            symbols[j] = NONE;
            let Link { before, .. } = links[i];
            let next = links[j].after;
            links[i].after = next;
            if next != NONE {
                links[next as usize].before = at;
                heap.extend(entry(at, token, symbols[next as usize]));
            }
            if before != NONE {
                heap.extend(entry(before, symbols[before as usize], token));
            }
        }
        symbols.retain(|&symbol| symbol != NONE);
    }
}

fn first_lowest(merges: &[Merge]) -> Option<(usize, Merge)> {
    let mut lowest = (0, NO_MERGE);
    for (at, &merge) in merges.iter().enumerate() {
        if merge.rank < lowest.1.rank {
            lowest = (at, merge);
        }
    }
    (lowest.1.rank != NONE).then_some(lowest)
}
