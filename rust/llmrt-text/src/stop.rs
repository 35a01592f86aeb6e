//! Stop strings in a stream of text.

/// Looks for stop strings in a text that arrives in pieces.
///
/// The string whose end comes first wins; of several that end there, the longest. Text is held back only while it may
/// be the beginning of a stop string. Each pattern is followed by its Knuth-Morris-Pratt automaton, so a piece costs
/// constant time per byte and pattern, and the outcome does not depend on how the text was cut.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    include: bool,
}

#[derive(Clone, Debug)]
struct Pattern {
    /// Position among the request's stop strings.
    index: usize,
    bytes: Box<[u8]>,
    /// `border[n]`: length of the longest proper prefix of the first `n + 1` bytes that is also their suffix.
    border: Box<[u32]>,
    /// Bytes of the pattern that the text ends with now.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings are left out. With `include`, the stop string stays in the text.
    ///
    /// None when there is nothing to look for.
    pub fn new<S: AsRef<str>>(stops: &[S], include: bool) -> Option<Self> {
        let stops = stops.iter().map(AsRef::as_ref).enumerate();
        let patterns: Vec<_> = stops
            .filter(|(_, stop)| !stop.is_empty())
            .map(|(index, stop)| Pattern::new(index, stop))
            .collect();
        if patterns.is_empty() {
            None
        } else {
            Some(Self {
                patterns,
                held: String::new(),
                include,
            })
        }
    }

    /// Takes the next piece of text and appends to `out` what can be shown.
    ///
    /// Returns the index of the stop string that ended the text; what stands behind it in `piece` is dropped, and the
    /// matcher is spent. Unless `armed`, a stop string that ends in this piece is passed over as ordinary text (one that
    /// only begins in it may still be found later).
    pub fn push(&mut self, piece: &str, armed: bool, out: &mut String) -> Option<usize> {
        for (position, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for pattern in &mut self.patterns {
                let length = pattern.bytes.len();
                if pattern.advance(byte) && longest.is_none_or(|(longest, _)| length > longest) {
                    longest = Some((length, pattern.index));
                }
            }
            if let (true, Some((length, index))) = (armed, longest) {
                self.held.push_str(&piece[..=position]);
                let shown = if self.include {
                    self.held.len()
                } else {
                    self.held.len() - length
                };
                out.push_str(&self.held[..shown]);
                self.held.clear();
                return Some(index);
            }
        }
        self.release(piece, out);
        None
    }

    /// No text follows: appends what was held back to `out`.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Shows everything but the longest end of the text that begins a stop string. Patterns and pieces are whole
    /// characters, so this cuts on a character boundary.
    fn release(&mut self, piece: &str, out: &mut String) {
        let hold = self
            .patterns
            .iter()
            .map(|pattern| pattern.matched)
            .max()
            .unwrap_or(0);
        if hold == 0 && self.held.is_empty() {
            return out.push_str(piece);
        }
        self.held.push_str(piece);
        let shown = self.held.len() - hold;
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
    }
}

impl Pattern {
    fn new(index: usize, stop: &str) -> Self {
        let bytes: Box<[u8]> = stop.as_bytes().into();
        let mut border = vec![0u32; bytes.len()];
        let mut length = 0;
        for end in 1..bytes.len() {
            while length > 0 && bytes[end] != bytes[length] {
                length = border[length - 1] as usize;
            }
            if bytes[end] == bytes[length] {
                length += 1;
            }
            border[end] = length as u32;
        }
        Self {
            index,
            bytes,
            border: border.into(),
            matched: 0,
        }
    }

    /// Follows one byte; true when it completes the pattern. Afterwards `matched` is less than the pattern's length.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1] as usize;
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        let complete = self.matched == self.bytes.len();
        if complete {
            self.matched = self.border[self.matched - 1] as usize;
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a matcher must do, over the whole text: (shown text, index of the stop string).
    fn oracle(
        pieces: &[&str],
        disarmed: usize,
        stops: &[String],
        include: bool,
    ) -> (String, Option<usize>) {
        let text = pieces.concat();
        let first: usize = pieces.iter().take(disarmed).map(|piece| piece.len()).sum();
        for end in first + 1..=text.len() {
            let found = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some((index, stop)) =
                found.max_by_key(|&(index, stop)| (stop.len(), usize::MAX - index))
            {
                let shown = if include { end } else { end - stop.len() };
                return (text[..shown].to_owned(), Some(index));
            }
        }
        (text, None)
    }

    fn run(matcher: &mut StopMatcher, pieces: &[&str], disarmed: usize) -> (String, Option<usize>) {
        let mut shown = String::new();
        for (number, piece) in pieces.iter().enumerate() {
            if let Some(index) = matcher.push(piece, number >= disarmed, &mut shown) {
                return (shown, Some(index));
            }
        }
        matcher.finish(&mut shown);
        (shown, None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn finds_what_a_search_over_the_whole_text_finds(
            pieces in prop::collection::vec("[abé語]{0,4}", 0..12),
            stops in prop::collection::vec("[abé語]{1,5}", 1..5),
            disarmed in 0usize..4,
            include: bool,
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let mut matcher = StopMatcher::new(&stops, include).expect("stops are not empty");
            prop_assert_eq!(run(&mut matcher, &pieces, disarmed), oracle(&pieces, disarmed, &stops, include));
        }

        #[test]
        fn holds_back_only_what_may_become_a_stop(text in "[abé]{0,12}", stop in "[abé]{2,6}") {
            let mut matcher = StopMatcher::new(&[&stop], false).expect("the stop is not empty");
            let mut shown = String::new();
            let mut seen = String::new();
            for character in text.chars() {
                seen.push(character);
                if matcher.push(&character.to_string(), true, &mut shown).is_some() {
                    break;
                }
                let starts = stop.char_indices().map(|(at, _)| &stop[..at]);
                let hold = starts.filter(|start| seen.ends_with(start)).map(str::len).max().unwrap_or(0);
                prop_assert_eq!(shown.len(), seen.len() - hold);
            }
        }
    }

    #[test]
    fn a_stop_that_began_while_disarmed_is_found() {
        let mut matcher = StopMatcher::new(&["STOP"], false).expect("one stop");
        assert_eq!(
            run(&mut matcher, &["a STOP b", " ST", "OP c"], 2),
            ("a STOP b ".to_owned(), Some(0))
        );
    }

    #[test]
    fn nothing_to_look_for() {
        assert!(StopMatcher::new::<&str>(&[], false).is_none());
        assert!(StopMatcher::new(&[""], true).is_none());
        let mut matcher = StopMatcher::new(&["", "b"], false).expect("one stop");
        assert_eq!(run(&mut matcher, &["abc"], 0), ("a".to_owned(), Some(1)));
    }
}
