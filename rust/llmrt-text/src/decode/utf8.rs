//! Bytes to text, a piece at a time, with the outcome of `String::from_utf8_lossy` over the whole.

use std::str::from_utf8;

/// The beginning of a character whose end has not arrived: at most three bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utf8Stream {
    held: [u8; 3],
    len: u8,
}

impl Utf8Stream {
    /// Appends to `out` every character that `bytes` complete, and U+FFFD for each sequence that is known to be
    /// invalid. Only a valid beginning of a character is held back.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = self.complete(bytes, out);
        loop {
            let error = match from_utf8(rest) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            out.push_str(from_utf8(valid).unwrap_or_default());
            match error.error_len() {
                Some(len) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &invalid[len..];
                }
                None => return self.hold(invalid),
            }
        }
    }

    /// No byte follows: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.len = 0;
        }
    }

    /// Feeds the held character until it is whole or broken; returns the bytes behind it.
    fn complete<'b>(&mut self, mut bytes: &'b [u8], out: &mut String) -> &'b [u8] {
        while self.len > 0 {
            let Some((&next, after)) = bytes.split_first() else {
                break;
            };
            let len = usize::from(self.len);
            let mut character = [0; 4];
            character[..len].copy_from_slice(&self.held[..len]);
            character[len] = next;
            match from_utf8(&character[..=len]) {
                Ok(text) => {
                    out.push_str(text);
                    self.len = 0;
                }
                Err(error) if error.error_len().is_none() => self.hold(&character[..=len]),
                Err(_) => {
                    // The byte that broke the character may begin the next one.
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.len = 0;
                    break;
                }
            }
            bytes = after;
        }
        bytes
    }

    /// `beginning` is a valid beginning of a character, so three bytes at most.
    fn hold(&mut self, beginning: &[u8]) {
        self.held[..beginning.len()].copy_from_slice(beginning);
        self.len = beginning.len() as u8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that often form characters, cut anywhere, broken now and then.
    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let bytes = prop_oneof![
            4 => any::<char>().prop_map(|c| c.to_string().into_bytes()),
            2 => prop::collection::vec(any::<u8>(), 1..4),
            2 => any::<char>().prop_map(|c| c.to_string().into_bytes()[..1].to_vec()),
        ];
        let cut = (prop::collection::vec(bytes, 0..24), 1usize..5);
        cut.prop_map(|(parts, size)| parts.concat().chunks(size).map(<[u8]>::to_vec).collect())
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(pieces in pieces()) {
            let mut stream = Utf8Stream::default();
            let mut text = String::new();
            for piece in &pieces {
                stream.push(piece, &mut text);
            }
            stream.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }
    }

    #[test]
    fn a_broken_character_is_told_at_once() {
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        stream.push(b"\xF0\x9F", &mut text);
        assert_eq!(text, "");
        stream.push(b"A", &mut text);
        assert_eq!(text, "\u{FFFD}A");
    }
}
