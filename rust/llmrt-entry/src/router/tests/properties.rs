//! Random lives of requests against a model of them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Open,
    Text { request: usize, text: String },
    Finish { request: usize },
    Leave { request: usize },
    CoreDies,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => Just(Op::Open),
        4 => (0usize..8, "[a-zé]{0,3}").prop_map(|(request, text)| Op::Text { request, text }),
        2 => (0usize..8).prop_map(|request| Op::Finish { request }),
        2 => (0usize..8).prop_map(|request| Op::Leave { request }),
        1 => Just(Op::CoreDies),
    ];
    prop::collection::vec(op, 0..40)
}

/// What the model knows of a request.
#[derive(Default)]
struct Known {
    body: RefCell<Option<EventBody>>,
    expected: RefCell<String>,
    tokens: RefCell<u32>,
    open: RefCell<bool>,
}

proptest! {
    /// Each request ends exactly once, gets its own text, and gives back what it took.
    #[test]
    fn requests_never_mix_or_leak(ops in ops()) {
        let outbox = Arc::default();
        let router = router(4, 1 << 20, &outbox);
        let mut known: BTreeMap<u64, Known> = BTreeMap::new();
        let mut aborted = Vec::new();
        for op in ops {
            let nth = |known: &BTreeMap<u64, Known>, n: usize| known.keys().nth(n).copied();
            match op {
                Op::Open => {
                    let held = known.values().filter(|k| k.body.borrow().is_some()).count() as u32;
                    prop_assert_eq!(router.gate.permits_taken(), held);
                    let Some(permit) = admit(&router) else {
                        prop_assert_eq!(held, 4);
                        continue;
                    };
                    let origin = Origin { label: "l".into(), tenant: anybody(), arrived: Instant::now() };
                    let id = router.next_id();
                    let guard = open_one(&router, permit, request(id), events(), origin).unwrap();
                    let entry = Known::default();
                    *entry.body.borrow_mut() = Some(guard.into_body());
                    *entry.open.borrow_mut() = true;
                    known.insert(id.0, entry);
                }
                Op::Text { request, text } => {
                    let Some(id) = nth(&known, request) else { continue };
                    router.deliver(frame(&[(RequestId(id), 1, &text, None)]));
                    let entry = &known[&id];
                    if *entry.open.borrow() {
                        *entry.tokens.borrow_mut() += 1;
                        if !text.is_empty() {
                            entry.expected.borrow_mut().push_str(&format!("{text}|"));
                        }
                    }
                }
                Op::Finish { request } => {
                    let Some(id) = nth(&known, request) else { continue };
                    router.deliver(frame(&[(RequestId(id), 0, "", Some(FinishReason::Length))]));
                    let entry = &known[&id];
                    if entry.open.replace(false) {
                        let end = format!("Length:{}|", entry.tokens.borrow());
                        entry.expected.borrow_mut().push_str(&end);
                    }
                }
                Op::Leave { request } => {
                    let Some(id) = nth(&known, request) else { continue };
                    let entry = &known[&id];
                    let had = entry.body.borrow_mut().take();
                    if had.is_some() && entry.open.replace(false) {
                        aborted.push(RequestId(id));
                    }
                }
                Op::CoreDies => {
                    router.fail_all(&ApiError::internal("dead"));
                    for (id, entry) in &known {
                        if entry.open.replace(false) {
                            entry.expected.borrow_mut().push_str("500: dead|");
                            aborted.push(RequestId(*id));
                        }
                    }
                }
            }
            let open = known.values().filter(|entry| *entry.open.borrow()).count();
            prop_assert_eq!(router.open_requests(), open);
        }
        let mut sent = outbox.aborted();
        sent.sort_unstable();
        aborted.sort_unstable();
        prop_assert_eq!(sent, aborted);
        for entry in known.into_values() {
            let Some(mut body) = entry.body.take() else { continue };
            let got: String = std::iter::from_fn(|| take(&mut body)).collect();
            prop_assert_eq!(got, entry.expected.into_inner());
        }
        prop_assert_eq!(router.gate.permits_taken(), 0);
    }
}
