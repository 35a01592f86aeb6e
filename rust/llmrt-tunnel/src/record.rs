//! What pieces carry, end to end: records, each with a head of fixed size.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a record's head: kind, channel, length.
pub const HEAD: usize = 1 + 4 + 4;
/// Largest frame of a link. Those in practice are far smaller; larger ones would have to be held whole.
pub const MAX_FRAME: usize = 256 << 20;
/// Largest text of a record that is no frame.
const MAX_TEXT: usize = 1024;

const OPEN: u8 = 1;
const DATA: u8 = 2;
const CLOSE: u8 = 3;
const PING: u8 = 4;

/// One record. A channel is a connection of a link: the node opens those to the scheduler, the gateway those of
/// detokenizers (and of who else looks in) to the node. Each side closes any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Open {
        channel: u32,
    },
    Data {
        channel: u32,
        frame: Bytes,
    },
    Close {
        channel: u32,
        reason: String,
    },
    /// Sign of life.
    Ping,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sends what is no record")]
pub struct Malformed;

impl Record {
    /// Its head, and what follows.
    pub fn into_parts(self) -> ([u8; HEAD], Bytes) {
        let (kind, channel, payload) = match self {
            Self::Open { channel } => (OPEN, channel, Bytes::new()),
            Self::Data { channel, frame } => (DATA, channel, frame),
            Self::Close {
                channel,
                mut reason,
            } => {
                cut(&mut reason);
                (CLOSE, channel, reason.into())
            }
            Self::Ping => (PING, 0, Bytes::new()),
        };
        let mut head = [kind; HEAD];
        head[1..5].copy_from_slice(&channel.to_be_bytes());
        head[5..].copy_from_slice(&(payload.len() as u32).to_be_bytes());
        (head, payload)
    }

    /// Takes the first record from `plain`; none while it is not whole.
    pub fn take(plain: &mut BytesMut) -> Result<Option<Self>, Malformed> {
        let Some((head, rest)) = plain.split_at_checked(HEAD) else {
            return Ok(None);
        };
        let kind = head[0];
        let mut numbers = &head[1..];
        let (channel, length) = (numbers.get_u32(), numbers.get_u32() as usize);
        let most = match kind {
            DATA => MAX_FRAME,
            CLOSE => MAX_TEXT,
            OPEN | PING => 0,
            _ => return Err(Malformed),
        };
        if length > most {
            return Err(Malformed);
        }
        if rest.len() < length {
            return Ok(None);
        }
        plain.advance(HEAD);
        let payload = plain.split_to(length).freeze();
        Ok(Some(match kind {
            OPEN => Self::Open { channel },
            DATA => Self::Data {
                channel,
                frame: payload,
            },
            CLOSE => Self::Close {
                channel,
                reason: String::from_utf8_lossy(&payload).into_owned(),
            },
            _ => Self::Ping,
        }))
    }
}

/// Shortens what is said for people to a length that is always sent.
pub fn cut(text: &mut String) {
    let end = (0..=MAX_TEXT.min(text.len())).rfind(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> impl Strategy<Value = Record> {
        let frame = prop::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            any::<u32>().prop_map(|channel| Record::Open { channel }),
            (any::<u32>(), frame).prop_map(|(channel, frame)| Record::Data {
                channel,
                frame: frame.into()
            }),
            (any::<u32>(), "[a-zé]{0,40}")
                .prop_map(|(channel, reason)| Record::Close { channel, reason }),
            Just(Record::Ping),
        ]
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in_however_they_are_cut(
            sent in prop::collection::vec(records(), 0..10),
            cut in 1..50usize,
        ) {
            let mut bytes = Vec::new();
            for record in &sent {
                let (head, payload) = record.clone().into_parts();
                bytes.extend_from_slice(&head);
                bytes.extend_from_slice(&payload);
            }
            let (mut plain, mut received) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(cut) {
                plain.extend_from_slice(part);
                while let Some(record) = Record::take(&mut plain).unwrap() {
                    received.push(record);
                }
            }
            prop_assert_eq!(received, sent);
            prop_assert!(plain.is_empty());
        }

        #[test]
        fn foreign_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut plain = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = Record::take(&mut plain) {}
        }
    }

    #[test]
    fn a_record_that_announces_too_much_is_refused_before_it_comes() {
        for (kind, length) in [
            (DATA, MAX_FRAME + 1),
            (CLOSE, MAX_TEXT + 1),
            (OPEN, 1),
            (9, 0),
        ] {
            let mut head = [0; HEAD];
            head[0] = kind;
            head[5..].copy_from_slice(&(length as u32).to_be_bytes());
            assert_eq!(Record::take(&mut BytesMut::from(&head[..])), Err(Malformed));
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = "é".repeat(MAX_TEXT);
        let (head, payload) = Record::Close { channel: 1, reason }.into_parts();
        let mut plain = BytesMut::from(&[&head[..], &payload[..]].concat()[..]);
        let Some(Record::Close { reason, .. }) = Record::take(&mut plain).unwrap() else {
            panic!("another record");
        };
        assert!(reason.len() > MAX_TEXT - 4 && reason.chars().all(|letter| letter == 'é'));
    }
}
