//! The router alone, against an outbox that keeps what was sent.

mod properties;

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use llmrt_link::PeerState;
use llmrt_wire::{Finished, Message, Outcome, Sampling};
use tokio::sync::{mpsc, watch};

use super::guard::WholeAnswer;
use super::*;
use crate::api::Usage;
use crate::gate::Bounds;
use crate::tenants::{Rules, Tenant};

/// An outbox that keeps what was sent, and refuses submits when `full`.
#[derive(Default)]
struct Sent {
    messages: Mutex<Vec<Message>>,
    full: bool,
}

impl Outbox for Sent {
    fn send(&self, message: &Message) -> Result<(), SendError> {
        if self.full && matches!(message, Message::Submit(_)) {
            return Err(SendError::Full);
        }
        self.messages.lock().unwrap().push(message.clone());
        Ok(())
    }

    fn state(&self) -> watch::Receiver<PeerState> {
        watch::channel(PeerState::Connecting).1
    }

    fn is_greeting(&self) -> bool {
        false
    }

    fn incoming(&self) -> Option<mpsc::Receiver<Message>> {
        None
    }

    fn close(&self, _: &str) {}
}

impl Sent {
    fn aborted(&self) -> Vec<RequestId> {
        let messages = self.messages.lock().unwrap();
        let aborts = messages.iter().filter_map(|message| match message {
            Message::Abort(abort) => Some(abort.ids.clone()),
            _ => None,
        });
        aborts.flatten().collect()
    }
}

/// Events as plain words.
struct Words;

impl EventWriter for Words {
    fn row(&mut self, row: &Row, _usage: Usage, out: &mut BytesMut) {
        out.extend_from_slice(row.text.as_bytes());
        out.extend_from_slice(b"|");
    }

    fn finish(&mut self, outcome: &Outcome, usage: Usage, out: &mut BytesMut) {
        let words = format!("{:?}:{}|", outcome.reason, usage.completion_tokens);
        out.extend_from_slice(words.as_bytes());
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        out.extend_from_slice(format!("{error}|").as_bytes());
    }
}

fn anybody() -> Rc<Tenant> {
    Tenant::new(Rules::default())
}

fn router(permits: u32, buffer_bytes: usize, outbox: &Arc<Sent>) -> Rc<Router> {
    router_at(3, permits, buffer_bytes, outbox).0
}

/// A router and its worker's number.
fn router_at(
    worker: u16,
    permits: u32,
    buffer_bytes: usize,
    outbox: &Arc<Sent>,
) -> (Rc<Router>, Arc<AtomicU16>) {
    let bounds = Bounds {
        permits,
        running: permits,
        queued_tokens: 0,
    };
    let limits = RouterLimits {
        buffer_bytes,
        stall_timeout: Duration::from_secs(1),
        ping_interval: None,
    };
    let (gate, metrics) = (Gate::new(bounds, None), Rc::new(Metrics::new("m")));
    let place = Arc::new(AtomicU16::new(worker));
    let router = Router::new(place.clone(), 1, limits, gate, outbox.clone(), metrics);
    (router, place)
}

fn request(id: RequestId) -> Request {
    let (sampling, output) = (Sampling::default(), llmrt_wire::Output::default());
    Request {
        id,
        prompt: vec![1, 2].into(),
        sampling,
        output,
        priority: 0,
        cache_salt: String::new(),
        deadline_ms: None,
    }
}

/// A permit, if there is one now.
fn admit(router: &Rc<Router>) -> Option<Permit> {
    let admitted = router.gate.admit(&anybody(), 1, true).now_or_never();
    admitted.expect("an answer at once").ok()?.pop()
}

fn open(router: &Rc<Router>, form: Form) -> Result<RequestGuard, SendError> {
    let permit = admit(router).expect("a permit");
    let origin = Origin {
        label: "label".into(),
        tenant: anybody(),
        arrived: Instant::now(),
    };
    open_one(router, permit, request(router.next_id()), form, origin)
}

fn open_one(
    router: &Rc<Router>,
    permit: Permit,
    request: Request,
    form: Form,
    origin: Origin,
) -> Result<RequestGuard, SendError> {
    let opening = Opening {
        permit,
        turn: None,
        request,
        form,
    };
    let mut guards = router.open(vec![opening], &origin)?;
    Ok(guards.remove(0))
}

fn events() -> Form {
    Form::Events(Box::new(Words))
}

fn outcome(reason: FinishReason) -> Outcome {
    Outcome {
        reason,
        stop_token: None,
        stop_string: None,
        status: 500,
        message: "broken".to_owned(),
    }
}

fn frame(rows: &[(RequestId, u32, &str, Option<FinishReason>)]) -> TextFrame {
    let mut frame = TextFrame::default();
    for (row, (id, count, text, reason)) in rows.iter().enumerate() {
        frame.ids.push(id.0);
        frame.counts.push(*count);
        frame.text.push_str(text);
        frame.ends.push(frame.text.len() as u32);
        if let Some(reason) = reason {
            frame.finished.push(Finished {
                row: row as u32,
                outcome: outcome(*reason),
            });
        }
    }
    frame
}

fn take(body: &mut EventBody) -> Option<String> {
    let frame = body.frame().now_or_never()??;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

#[test]
fn ids_carry_worker_and_shard() {
    let router = router(1, 1024, &Arc::default());
    let (one, two) = (router.next_id(), router.next_id());
    assert_eq!((one.worker(), one.shard()), (3, 1));
    assert_eq!(two.sequence(), one.sequence() + 1);
}

#[test]
fn a_stream_gets_what_arrived_since_it_was_last_asked() {
    let outbox = Arc::default();
    let router = router(2, 1024, &outbox);
    let mut body = open(&router, events()).unwrap().into_body();
    let id = RequestId::new(3, 1, router.sequence.get());
    assert_eq!(take(&mut body), None);
    router.deliver(frame(&[(id, 1, "a", None)]));
    router.deliver(frame(&[
        (RequestId(9), 1, "foreign", None),
        (id, 2, "bc", None),
    ]));
    assert_eq!(take(&mut body).unwrap(), "a|bc|");
    assert!(!hyper::body::Body::is_end_stream(&body));
    router.deliver(frame(&[(id, 1, "d", Some(FinishReason::Stop))]));
    assert_eq!(take(&mut body).unwrap(), "d|Stop:4|");
    assert!(hyper::body::Body::is_end_stream(&body));
    drop(body);
    assert!(
        outbox.aborted().is_empty(),
        "a finished request was aborted"
    );
    assert_eq!(
        (router.gate.permits_taken(), router.open_requests()),
        (0, 0)
    );
}

#[test]
fn an_end_arrives_once() {
    let router = router(1, 1024, &Arc::default());
    let mut body = open(&router, events()).unwrap().into_body();
    let id = RequestId::new(3, 1, router.sequence.get());
    let end = frame(&[(id, 0, "", Some(FinishReason::Length))]);
    router.deliver(end.clone());
    router.deliver(end);
    router.fail_all(&ApiError::internal("late"));
    assert_eq!(take(&mut body).unwrap(), "Length:0|");
    assert_eq!(take(&mut body), None);
}

#[test]
fn the_end_may_be_queued_while_the_reader_leaves() {
    let outbox = Arc::default();
    let router = router(1, 1024, &outbox);
    let body = open(&router, events()).unwrap().into_body();
    let id = RequestId::new(3, 1, router.sequence.get());
    router.deliver(frame(&[(id, 1, "a", Some(FinishReason::Stop))]));
    drop(body);
    assert!(outbox.aborted().is_empty());
}

#[test]
fn leaving_aborts_at_once_and_returns_the_permit() {
    let outbox = Arc::default();
    let router = router(1, 1024, &outbox);
    let guard = open(&router, events()).unwrap();
    let id = guard.id;
    assert!(admit(&router).is_none());
    drop(guard.into_body());
    assert_eq!(outbox.aborted(), [id]);
    assert!(admit(&router).is_some());
    router.deliver(frame(&[
        (id, 1, "late", None),
        (id, 0, "", Some(FinishReason::Abort)),
    ]));
}

#[test]
fn a_refused_submit_leaves_nothing_behind() {
    let outbox = Arc::new(Sent {
        full: true,
        ..Sent::default()
    });
    let router = router(1, 1024, &outbox);
    assert!(matches!(open(&router, events()), Err(SendError::Full)));
    assert_eq!(
        (router.gate.permits_taken(), router.open_requests()),
        (0, 0)
    );
    assert!(outbox.aborted().is_empty());
}

#[test]
fn a_request_made_under_another_number_is_not_submitted() {
    let outbox = Arc::new(Sent::default());
    let (router, place) = router_at(3, 1, 100, &outbox);
    let before = request(router.next_id());
    place.store(4, Ordering::Relaxed);
    let permit = admit(&router).unwrap();
    let origin = Origin {
        label: "label".into(),
        tenant: anybody(),
        arrived: Instant::now(),
    };
    let refused = open_one(&router, permit, before, events(), origin);
    assert_eq!(refused.err(), Some(SendError::NotReady));
    assert!(outbox.messages.lock().unwrap().is_empty() && router.gate.permits_taken() == 0);
    assert_eq!(open(&router, events()).unwrap().id.worker(), 4);
}

#[test]
fn text_is_answered_whole() {
    let router = router(2, 1024, &Arc::default());
    let guard = open(&router, Form::Text(None)).unwrap();
    let id = guard.id;
    // More than a stream may have waiting: an answer that is collected has no reader to stall.
    let long = "é".repeat(8 * 1024);
    router.deliver(frame(&[(id, 1, &long, None)]));
    router.deliver(frame(&[(id, 1, "!", Some(FinishReason::Length))]));
    let WholeAnswer {
        text, usage, end, ..
    } = guard.answer().now_or_never().unwrap();
    assert_eq!(text, long + "!");
    assert_eq!(
        usage,
        Usage {
            prompt_tokens: 2,
            completion_tokens: 2,
            cached_tokens: 0
        }
    );
    assert_eq!(end, End::Finished(outcome(FinishReason::Length)));
    let failed = open(&router, Form::Text(None)).unwrap();
    router.deliver(frame(&[(failed.id, 0, "", Some(FinishReason::Error))]));
    let end = failed.answer().now_or_never().unwrap().end;
    assert_eq!(end, End::Failed(ApiError::internal("broken")));
    // The permits stay with the answers until those have left.
    assert_eq!(router.gate.permits_taken(), 2);
    drop((guard, failed));
    assert_eq!(router.gate.permits_taken(), 0);
}

#[test]
fn a_dead_core_ends_everything() {
    let outbox = Arc::default();
    let router = router(2, 1024, &outbox);
    let mut stream = open(&router, events()).unwrap().into_body();
    let text = open(&router, Form::Text(None)).unwrap();
    let error = ApiError::unavailable("gone");
    router.fail_all(&error);
    assert_eq!(take(&mut stream).unwrap(), "503: gone|");
    assert_eq!(
        text.answer().now_or_never().unwrap().end,
        End::Failed(error)
    );
    drop((stream, text));
    assert_eq!(router.gate.permits_taken(), 0);
}

#[test]
fn what_belongs_to_no_row_is_ignored() {
    let router = router(1, 1024, &Arc::default());
    let mut body = open(&router, events()).unwrap().into_body();
    let id = RequestId::new(3, 1, router.sequence.get());
    let mut bad = frame(&[(id, 1, "a", Some(FinishReason::Stop))]);
    bad.ends[0] = 7;
    bad.finished[0].row = 1;
    router.deliver(bad);
    assert_eq!(take(&mut body), None);
    router.deliver(frame(&[(id, 1, "a", None)]));
    assert_eq!(take(&mut body).unwrap(), "a|");
}

#[test]
fn pieces_are_bounded() {
    let router = router(1, 1 << 20, &Arc::default());
    let mut body = open(&router, events()).unwrap().into_body();
    let id = RequestId::new(3, 1, router.sequence.get());
    router.deliver(frame(&[(id, 1, &"x".repeat(40_000), None)]));
    let pieces: Vec<usize> = std::iter::from_fn(|| take(&mut body))
        .map(|piece| piece.len())
        .collect();
    assert_eq!(pieces, [16 << 10, 16 << 10, 40_001 - (32 << 10)]);
}

#[test]
fn only_silent_streams_that_are_read_are_pinged() {
    let router = router(2, 1024, &Arc::default());
    let (guard, text) = (
        open(&router, events()).unwrap(),
        open(&router, Form::Text(None)).unwrap(),
    );
    let (id, stream) = (guard.id, guard.outlet.clone());
    let mut body = guard.into_body();
    let began = Instant::now();
    let ping = |outlet: &RefCell<Outlet>, seconds| {
        let now = began + Duration::from_secs(seconds);
        outlet.borrow_mut().ping(now, Duration::from_secs(15));
    };
    ping(&stream, 14);
    assert_eq!(take(&mut body), None);
    ping(&stream, 16);
    assert_eq!(take(&mut body).unwrap(), ": ping\n\n");
    ping(&stream, 30);
    assert_eq!(take(&mut body), None);
    router.deliver(frame(&[(id, 1, "a", None)]));
    ping(&stream, 60);
    assert_eq!(take(&mut body).unwrap(), "a|");
    ping(&text.outlet, 60);
    assert!(text.outlet.borrow().waiting.is_empty());
}
