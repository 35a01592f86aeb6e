//! What both ends believe, and what they do not.

use proptest::prelude::*;

use super::*;

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes()).unwrap()
}

/// Both ends of a tunnel, after their greetings.
fn pair() -> [(Sealer, Opener); 2] {
    let secret = secret("a secret of both ends");
    let mut node = Handshake::initiator(&secret);
    let mut gateway = Handshake::responder(&secret);
    gateway.greeted(&node.greet()).unwrap();
    node.greeted(&gateway.greet()).unwrap();
    [node.finish(), gateway.finish()]
}

/// A piece without its length.
fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal(plain, &mut out);
    out.split_off(LENGTH)
}

#[test]
fn short_secrets_are_refused_and_none_is_shown() {
    assert!(Secret::new(b"fifteen bytes..").is_err());
    assert_eq!(format!("{:?}", secret("sixteen bytes...")), "[hidden]");
}

#[test]
fn another_secret_is_no_secret_on_either_side() {
    let mut node = Handshake::initiator(&secret("the secret of the node"));
    let mut gateway = Handshake::responder(&secret("the secret of the core"));
    assert_eq!(gateway.greeted(&node.greet()), Err(Forged));
    // Who does not know it can only make something up, or repeat what another end has said to another node.
    assert_eq!(node.greeted(&[7; GREETING]), Err(Forged));
    let mut node = Handshake::initiator(&secret("a secret of both ends"));
    let mut other = Handshake::initiator(&secret("a secret of both ends"));
    let mut gateway = Handshake::responder(&secret("a secret of both ends"));
    gateway.greeted(&other.greet()).unwrap();
    node.greet();
    assert_eq!(node.greeted(&gateway.greet()), Err(Forged));
}

#[test]
fn a_repeated_greeting_opens_nothing() {
    let secret = secret("a secret of both ends");
    let mut node = Handshake::initiator(&secret);
    let greeting = node.greet();
    let mut first = Handshake::responder(&secret);
    first.greeted(&greeting).unwrap();
    node.greeted(&first.greet()).unwrap();
    let piece = seal(&mut node.finish().0, b"join");
    // A recording of all that the node has said: the second gateway's key is another one.
    let mut second = Handshake::responder(&secret);
    second.greeted(&greeting).unwrap();
    second.greet();
    let mut opener = second.finish().1;
    assert_eq!(opener.open(&piece, &mut BytesMut::new()), Err(Forged));
}

#[test]
fn pieces_pass_once_and_in_order_and_in_their_direction() {
    let [(mut node, mut node_in), (mut gateway, mut gateway_in)] = pair();
    let mut plain = BytesMut::new();
    let pieces: Vec<_> = (0..3u8).map(|byte| seal(&mut node, &[byte])).collect();
    gateway_in.open(&pieces[0], &mut plain).unwrap();
    assert_eq!(
        gateway_in.open(&pieces[0], &mut plain),
        Err(Forged),
        "again"
    );
    let [(mut node, _), (_, mut gateway_in)] = pair();
    let pieces: Vec<_> = (0..3u8).map(|byte| seal(&mut node, &[byte])).collect();
    assert_eq!(
        gateway_in.open(&pieces[1], &mut plain),
        Err(Forged),
        "early"
    );
    let piece = seal(&mut gateway, b"mine");
    node_in.open(&piece, &mut plain).unwrap();
    let piece = seal(&mut gateway, b"mine");
    assert_eq!(
        gateway_in.open(&piece, &mut plain),
        Err(Forged),
        "thrown back"
    );
    assert_eq!(&plain[..], b"\0mine");
}

proptest! {
    #[test]
    fn what_is_sealed_opens_as_it_was(plains in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 1..8)) {
        let [(mut node, _), (_, mut gateway)] = pair();
        let mut opened = BytesMut::new();
        for plain in &plains {
            gateway.open(&seal(&mut node, plain), &mut opened).unwrap();
        }
        prop_assert_eq!(&opened[..], plains.concat());
    }

    #[test]
    fn a_piece_that_was_changed_is_refused(
        plain in prop::collection::vec(any::<u8>(), 0..500),
        place in any::<prop::sample::Index>(),
        bit in 0..8u8,
        cut in any::<bool>(),
    ) {
        let [(mut node, _), (_, mut gateway)] = pair();
        let mut piece = seal(&mut node, &plain);
        let place = place.index(piece.len());
        if cut {
            piece.truncate(place);
        } else {
            piece[place] ^= 1 << bit;
        }
        let mut opened = BytesMut::new();
        prop_assert_eq!(gateway.open(&piece, &mut opened), Err(Forged));
        prop_assert!(opened.is_empty());
    }
}
