//! Who knows no secret: in the place of a core, between core and node, and at the core's door.

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::sync::Notify;

use super::*;
use crate::session::PATIENCE;

#[test]
fn who_only_pretends_to_be_a_core_gets_no_node() {
    here(async {
        type IsRight = fn(&JoinError) -> bool;
        let cases: [(&[u8], IsRight); 2] = [
            (&[&[0, 48], &[7; 48][..]].concat(), |error| {
                matches!(error, JoinError::Secret { .. })
            }),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", |error| {
                matches!(error, JoinError::Stranger { .. })
            }),
        ];
        for (answer, is_right) in cases {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = target(&listener.local_addr().unwrap().to_string(), secret());
            let joining = target.join(None);
            let pretending = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(answer).await.unwrap();
                // Until the node has hung up.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            };
            let (joined, ()) = tokio::join!(joining, pretending);
            let error = joined.err().unwrap();
            assert!(is_right(&error), "{error}");
        }
    });
}

/// Passes connections on to a gateway; of the first one it changes a bit in the third piece that the node sends, the
/// first behind greeting and introduction.
async fn meddle(listener: TcpListener, gateway: String) {
    for count in 0.. {
        let (node, _) = listener.accept().await.unwrap();
        let core = TcpStream::connect(&gateway).await.unwrap();
        let (mut from_node, mut to_node) = node.into_split();
        let (mut from_core, mut to_core) = core.into_split();
        spawn_local(async move { tokio::io::copy(&mut from_core, &mut to_node).await });
        spawn_local(async move {
            let mut number = 0;
            while let Ok(length) = from_node.read_u16().await {
                let mut piece = vec![0; usize::from(length)];
                from_node.read_exact(&mut piece).await.unwrap();
                number += 1;
                if count == 0 && number == 3 {
                    piece[0] ^= 1;
                }
                let _ = to_core.write_u16(length).await;
                let _ = to_core.write_all(&piece).await;
            }
        });
    }
}

#[test]
fn a_changed_piece_ends_the_tunnel_and_the_node_joins_again() {
    here(async {
        let mut rig = Rig::new(30.0).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        spawn_local(meddle(listener, rig.address.clone()));
        let worker = Worker::new(target(&address, secret())).await;
        // The changed piece was the one that opens the link: the first that comes through is of the second tunnel.
        assert_eq!(joined(rig.event().await), ("entry".to_owned(), 1));
        worker.ready().await;
        worker.outbox.send(&abort(7)).unwrap();
        assert!(matches!(rig.event().await, Event::Message { .. }));
    });
}

/// Passes the first connection on to a gateway until it is told to cut it, gives each of `answers` to one that follows,
/// and passes on the one behind them.
async fn interrupt(
    listener: TcpListener,
    gateway: String,
    cut: Rc<Notify>,
    answers: &[&'static [u8]],
) {
    let pass = async || {
        let (mut node, _) = listener.accept().await.unwrap();
        let mut core = TcpStream::connect(&gateway).await.unwrap();
        // However either side ends.
        let _ = copy_bidirectional(&mut node, &mut core).await;
    };
    tokio::select! {
        () = pass() => {}
        () = cut.notified() => {}
    }
    for answer in answers {
        let (mut node, _) = listener.accept().await.unwrap();
        node.write_all(answer).await.unwrap();
        let _ = node.read_to_end(&mut Vec::new()).await;
    }
    pass().await;
}

#[test]
fn a_node_joins_again_whoever_answered_in_between() {
    here(async {
        let answers: &[&[u8]] = &[
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            b"\0\x15llmrt: another secret",
            b"\0\x30 48 bytes, which nobody made who knows the secret",
        ];
        let mut rig = Rig::new(30.0).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cut = Rc::new(Notify::new());
        let way = interrupt(listener, rig.address.clone(), cut.clone(), answers);
        spawn_local(way);
        let worker = Worker::new(target(&address, secret())).await;
        assert_eq!(joined(rig.event().await), ("entry".to_owned(), 1));
        worker.ready().await;
        cut.notify_one();
        assert!(matches!(rig.event().await, Event::Left { .. }));
        assert_eq!(joined(rig.event().await), ("entry".to_owned(), 1));
        worker.ready().await;
    });
}

#[test]
fn those_who_connect_and_say_nothing_keep_no_node_out() {
    here(async {
        let rig = Rig::new(30.0).await;
        let mut silent = Vec::new();
        // So many that who waits for them waits for two deadlines.
        for _ in 0..150 {
            silent.push(TcpStream::connect(&rig.address).await.unwrap());
        }
        let joined = timeout(PATIENCE, rig.target().join(None)).await;
        joined.expect("before one deadline").unwrap();
    });
}
