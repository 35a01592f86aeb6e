//! A gate that decides by its own ledger.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use llmrt_wire::RequestId;

use super::super::*;
use super::tenant;
use crate::api::ErrorKind;
use crate::tenants::Rules;

const BOUNDS: Bounds = Bounds {
    permits: 4,
    running: 1,
    queued_tokens: 0,
};

fn admit(gate: &Rc<Gate>, tenant: &Rc<Tenant>) -> Result<Vec<Permit>, Refusal> {
    let admitted = gate.admit(tenant, 1, true).now_or_never();
    admitted.expect("an answer at once")
}

fn prompt(tokens: u32, deadline: Option<Instant>) -> Answers {
    Answers::new(&[tokens], 0, deadline)
}

#[test]
fn a_flood_waits_and_everybody_else_is_next() {
    let bounds = Bounds {
        permits: 1000,
        ..BOUNDS
    };
    let gate = Gate::new(bounds, None);
    let (flood, other) = (tenant(Rules::default()), tenant(Rules::default()));
    let permits = |tenant| admit(&gate, tenant).unwrap();
    let floods: Vec<Vec<Permit>> = (0..102).map(|_| permits(&flood)).collect();
    let late = permits(&other);
    let queue = |permits| gate.queue(permits, prompt(1, None));
    let mut running: Vec<_> = (floods[..2].iter())
        .map(|permits| queue(permits).now_or_never().unwrap().unwrap())
        .collect();
    let mut waiting: Vec<_> = (floods[2..].iter())
        .map(|permits| Box::pin(queue(permits)))
        .collect();
    for one in &mut waiting {
        assert!(one.now_or_never().is_none());
    }
    let mut next = Box::pin(queue(&late));
    assert!((&mut next).now_or_never().is_none());
    assert_eq!(gate.waiting_turns(), 101);
    running.clear();
    assert!((&mut waiting[0]).now_or_never().is_some());
    assert!((&mut next).now_or_never().is_some());
    // Those who leave the lines are not asked any more.
    drop((waiting, next));
    drop((floods, late));
    let gone = (
        gate.waiting_turns(),
        gate.permits_taken(),
        gate.queued_tokens(),
    );
    assert_eq!(gone, (0, 0, 0));
}

#[test]
fn who_cannot_make_it_goes_before_somebody_else_is_refused() {
    let gate = Gate::new(BOUNDS, None);
    let ended: Rc<RefCell<Vec<RequestId>>> = Rc::default();
    let told = ended.clone();
    gate.on_late(move |ids| told.borrow_mut().extend(ids));
    let (one, other) = (tenant(Rules::default()), tenant(Rules::default()));
    // Two are submitted, one of which has begun; a third waits for its turn. All would be late.
    let deadline = Instant::now() + Duration::from_millis(30);
    let soon = Some(deadline);
    let (begun, unbegun) = (admit(&gate, &one).unwrap(), admit(&gate, &one).unwrap());
    let turns = [&begun, &unbegun].map(|permits| {
        let turn = gate.queue(permits, prompt(5, soon)).now_or_never();
        turn.unwrap().unwrap()
    });
    turns[0][0].begun();
    let ids = [1, 2].map(RequestId);
    gate.submitted(&begun[0], vec![ids[0]]);
    gate.submitted(&unbegun[0], vec![ids[1]]);
    let in_line = admit(&gate, &one).unwrap();
    let mut waits = Box::pin(gate.queue(&in_line, prompt(5, soon)));
    assert!((&mut waits).now_or_never().is_none());
    let patient = admit(&gate, &other).unwrap();
    // All permits are out. While they can make it, nobody goes.
    admit(&gate, &other).map(drop).unwrap_err();
    assert!(ended.borrow().is_empty());
    while Instant::now() < deadline {
        std::thread::yield_now();
    }
    let instead = admit(&gate, &other).unwrap();
    assert_eq!(*ended.borrow(), [ids[1]], "what has begun goes on");
    let late = waits.now_or_never().unwrap().map(drop).unwrap_err();
    assert_eq!(late.error.kind(), ErrorKind::Deadline);
    assert_eq!(gate.permits_taken(), 3);
    drop((instead, patient, in_line, turns, begun, unbegun));
    assert_eq!((gate.permits_taken(), gate.queued_tokens()), (0, 0));
}

#[test]
fn a_turn_that_comes_too_late_is_none() {
    let gate = Gate::new(BOUNDS, None);
    let (one, other) = (tenant(Rules::default()), tenant(Rules::default()));
    let first: Vec<_> = (0..2).map(|_| admit(&gate, &one).unwrap()).collect();
    let mut turns: Vec<_> = (first.iter())
        .map(|permits| {
            let turn = gate.queue(permits, prompt(1, None)).now_or_never();
            turn.unwrap().unwrap()
        })
        .collect();
    let (late, next) = (admit(&gate, &other).unwrap(), admit(&gate, &other).unwrap());
    let deadline = Some(Instant::now());
    let mut expired = Box::pin(gate.queue(&late, prompt(1, deadline)));
    let mut waits = Box::pin(gate.queue(&next, prompt(1, None)));
    assert!((&mut expired).now_or_never().is_none() && (&mut waits).now_or_never().is_none());
    turns.pop();
    assert!(expired.now_or_never().unwrap().is_err());
    assert!(waits.now_or_never().unwrap().is_ok());
}

#[test]
fn all_bounds_name_their_reason() {
    use crate::metrics::Rejection;
    let bounds = Bounds {
        permits: 4,
        running: 8,
        queued_tokens: 10,
    };
    let gate = Gate::new(bounds, None);
    let rules = Rules {
        concurrent: Some(1),
        ..Rules::default()
    };
    let (narrow, wide) = (tenant(rules), Tenant::new(Rules::default()));
    let refusal = |asked: Result<Vec<Permit>, Refusal>| asked.map(drop).unwrap_err().why;
    let held = admit(&gate, &narrow).unwrap();
    assert_eq!(refusal(admit(&gate, &narrow)), Some(Rejection::Key));
    let three = gate.admit(&wide, 3, true).now_or_never().unwrap().unwrap();
    assert_eq!(refusal(admit(&gate, &wide)), Some(Rejection::Permits));
    let turn = gate.queue(&held, prompt(10, None)).now_or_never();
    let turn = turn.unwrap().unwrap();
    let more = gate.queue(&three, Answers::new(&[1, 1, 1], 0, None));
    let why = more.now_or_never().unwrap().map(drop).unwrap_err().why;
    assert_eq!(why, Some(Rejection::QueuedTokens));
    turn[0].begun();
    let more = gate.queue(&three, Answers::new(&[1, 1, 1], 0, None));
    assert_eq!(more.now_or_never().unwrap().unwrap().len(), 3);
}
