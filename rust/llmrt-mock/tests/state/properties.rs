//! Whatever comes, every request ends once.

use std::time::Instant;

use llmrt_mock::{Limits, Pattern, State};
use llmrt_wire::{Message, RequestId};
use proptest::prelude::*;

use super::common::{limits, request};
use super::{PEER, submit};

#[derive(Clone, Debug)]
enum Act {
    Submit(u64, u32),
    Abort(u64),
    Ended(u64),
    Step,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..12u64, 1..6u32).prop_map(|(id, tokens)| Act::Submit(id, tokens)),
        (0..12u64).prop_map(Act::Abort),
        (0..12u64).prop_map(Act::Ended),
        Just(Act::Step),
    ]
}

proptest! {
    /// Whatever comes: frames are sound, each request ends once and gives its credit back, nothing is left.
    #[test]
    fn every_request_ends_exactly_once(acts in prop::collection::vec(act(), 1..80)) {
        let mut state = State::new(Limits { max_num_seqs: 3, ..limits() }, Pattern::Count);
        let (mut submitted, mut finished, mut credit) = (0, 0, 0);
        let mut next = 0;
        let drain = std::iter::repeat_n(Act::Step, 100);
        for act in acts.into_iter().chain(drain) {
            match act {
                Act::Submit(id, tokens) => {
                    // An id is used once; the low part picks the victims of the other acts.
                    next += 1;
                    let mut asked = request(next * 12 + id, &[5]);
                    asked.sampling.max_tokens = tokens;
                    submit(&mut state, asked);
                    submitted += 1;
                }
                Act::Abort(id) => state.abort(&victims(id, next), PEER),
                Act::Ended(id) => state.ended(&victims(id, next)),
                Act::Step => {
                    let output = state.step(Instant::now());
                    credit += output.credit.values().sum::<u32>();
                    for (_, frame) in output.frames {
                        finished += frame.finished.len();
                        let raw = Message::from(frame).encode();
                        prop_assert!(Message::decode(&raw).is_ok());
                    }
                }
            }
        }
        prop_assert_eq!(finished, submitted);
        prop_assert_eq!(credit as usize, submitted);
        prop_assert!(!state.has_work());
        prop_assert_eq!(state.stats().kv_cache_usage_perc, 0.0);
    }
}

fn victims(id: u64, last: u64) -> Vec<RequestId> {
    (1..=last).map(|round| RequestId(round * 12 + id)).collect()
}
