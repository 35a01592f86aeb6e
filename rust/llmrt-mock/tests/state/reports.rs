//! Log probabilities, prompts alone, deadlines.

use std::time::{Duration, Instant};

use llmrt_wire::FinishReason;

use super::common::{request, state};
use super::{PEER, step, submit};

#[test]
fn log_probabilities_are_told_of_those_who_ask() {
    let mut state = state();
    let mut asking = request(1, &[5, 6, 7]);
    asking.sampling.max_tokens = 2;
    asking.sampling.logprobs = Some(3);
    asking.sampling.prompt_logprobs = Some(1);
    submit(&mut state, request(2, &[5]));
    submit(&mut state, asking);
    for number in 0..2_usize {
        let frame = step(&mut state);
        assert_eq!(frame.check(), Ok(()));
        let logprobs = frame.logprobs.expect("one has asked");
        assert_eq!(
            (logprobs.rows.as_slice(), logprobs.top.as_slice()),
            (&[1][..], &[3][..])
        );
        assert_eq!(logprobs.top_ids[0], frame.tokens[1]);
        assert_eq!(logprobs.chosen[0], logprobs.top_logprobs[0]);
        let prompts: Vec<usize> = frame
            .prompt_logprobs
            .iter()
            .map(|p| p.chosen.len())
            .collect();
        assert_eq!(prompts, [2][..1 - number.min(1)]);
    }
    let rest = step(&mut state);
    assert_eq!((rest.logprobs, rest.prompt_logprobs), (None, Vec::new()));
}

#[test]
fn a_prompt_alone_generates_nothing() {
    let mut state = state();
    let mut alone = request(1, &[5, 6, 7]);
    alone.sampling.max_tokens = 0;
    submit(&mut state, alone.clone());
    assert_eq!(step(&mut state).finished[0].outcome.status, 400);
    alone.sampling.prompt_logprobs = Some(0);
    submit(&mut state, alone);
    let frame = step(&mut state);
    assert_eq!(frame.check(), Ok(()));
    assert_eq!((frame.counts.as_slice(), frame.tokens.len()), (&[0][..], 0));
    assert_eq!(frame.finished[0].outcome.reason, FinishReason::Length);
    assert_eq!(
        (frame.prompt_logprobs[0].chosen.len(), frame.first.len()),
        (2, 1)
    );
}

#[test]
fn a_deadline_ends_what_waits_and_what_runs() {
    let mut state = state();
    let mut late = request(1, &[5, 6, 7]);
    late.deadline_ms = Some(50);
    let start = Instant::now();
    state.submit(late.clone(), PEER, start);
    assert_eq!(state.step(start).frames[0].1.tokens.len(), 1);
    late.id = request(2, &[5]).id;
    late.deadline_ms = Some(0);
    state.submit(late, PEER, start + Duration::from_millis(60));
    let frame = state
        .step(start + Duration::from_millis(60))
        .frames
        .remove(0)
        .1;
    let ends: Vec<u16> = frame
        .finished
        .iter()
        .map(|finished| finished.outcome.status)
        .collect();
    assert_eq!((ends, frame.tokens.len()), (vec![408, 408], 0));
    assert!(!state.has_work());
}
