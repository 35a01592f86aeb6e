//! The state alone: what each step says.

#[path = "../common/mod.rs"]
mod common;
mod properties;
mod reports;

use std::time::Instant;

use common::{EOS, VOCAB, limits, request, state};
use llmrt_mock::{Limits, Pattern, State, StepOutput};
use llmrt_wire::{FinishReason, Outcome, Request, RequestId, TokenFrame};

const PEER: u64 = 1;

fn submit(state: &mut State, request: Request) {
    state.submit(request, PEER, Instant::now());
}

/// One step of one detokenizer.
fn step(state: &mut State) -> TokenFrame {
    let mut frames = state.step(Instant::now()).frames;
    assert!(frames.len() <= 1);
    frames.pop().map(|(_, frame)| frame).unwrap_or_default()
}

/// All tokens of a lone request, and how it ended.
fn answer(pattern: Pattern, limits: Limits, request: Request) -> (Vec<u32>, Outcome) {
    let mut state = State::new(limits, pattern);
    submit(&mut state, request);
    let mut tokens = Vec::new();
    loop {
        let frame = step(&mut state);
        tokens.extend_from_slice(&frame.tokens);
        if let Some(finished) = frame.finished.into_iter().next() {
            assert!(!state.has_work());
            return (tokens, finished.outcome);
        }
    }
}

fn ids(tokens: &[u32]) -> Pattern {
    Pattern::Tokens {
        tokens: tokens.into(),
    }
}

#[test]
fn max_tokens_and_the_context_end_an_answer() {
    let mut long = request(1, &[5, 6, 7]);
    long.sampling.max_tokens = 5;
    let (tokens, outcome) = answer(ids(&[8, 9]), limits(), long.clone());
    assert_eq!(tokens, [8, 9, 8, 9, 8]);
    assert_eq!(outcome.reason, FinishReason::Length);

    long.sampling.max_tokens = 1000;
    let short = Limits {
        max_model_len: 7,
        ..limits()
    };
    assert_eq!(answer(ids(&[8]), short, long).0, [8; 4]);
}

#[test]
fn stop_tokens_end_an_answer_and_are_banned_before_min_tokens() {
    let mut asked = request(1, &[5]);
    asked.sampling.max_tokens = 50;
    asked.sampling.stop_token_ids = vec![9];
    let (tokens, outcome) = answer(ids(&[7, 8, 9]), limits(), asked.clone());
    assert_eq!(
        (tokens, outcome.stop_token, outcome.reason),
        (vec![7, 8, 9], Some(9), FinishReason::Stop)
    );

    asked.sampling.min_tokens = 4;
    assert_eq!(
        answer(ids(&[7, 8, 9]), limits(), asked).0,
        [7, 8, 10, 7, 8, 9]
    );
}

#[test]
fn ignore_eos_ignores_the_end_alone() {
    let mut asked = request(1, &[5]);
    asked.sampling.max_tokens = 6;
    let (tokens, outcome) = answer(ids(&[7, EOS]), limits(), asked.clone());
    assert_eq!((tokens, outcome.stop_token), (vec![7, EOS], Some(EOS)));

    asked.sampling.ignore_eos = true;
    let (tokens, outcome) = answer(ids(&[7, EOS]), limits(), asked.clone());
    assert_eq!(tokens, [7, EOS, 7, EOS, 7, EOS]);
    assert_eq!(outcome.reason, FinishReason::Length);

    asked.sampling.stop_token_ids = vec![EOS];
    assert_eq!(answer(ids(&[7, EOS]), limits(), asked).0, [7, EOS]);
}

#[test]
fn answers_end_by_themselves() {
    let ending = Limits {
        answer_tokens: 3,
        ..limits()
    };
    let mut asked = request(1, &[5]);
    asked.sampling.max_tokens = 10;
    let (tokens, outcome) = answer(ids(&[7]), ending.clone(), asked.clone());
    assert_eq!(
        (tokens, outcome.stop_token),
        (vec![7, 7, 7, EOS], Some(EOS))
    );
    asked.sampling.min_tokens = 5;
    assert_eq!(answer(ids(&[7]), ending, asked).0, [7, 7, 7, 7, 7, EOS]);
}

#[test]
fn an_echo_is_the_prompt_without_its_ends() {
    let mut asked = request(1, &[5, EOS, 6, 7]);
    asked.sampling.max_tokens = 10;
    assert_eq!(answer(Pattern::Echo, limits(), asked).0, [5, 6, 7, EOS]);
}

#[test]
fn counting_and_chance_never_end_an_answer() {
    for pattern in [Pattern::Count, Pattern::Random { seed: 3 }] {
        let mut asked = request(1, &[5]);
        asked.sampling.max_tokens = 4 * VOCAB;
        let (tokens, outcome) = answer(pattern, limits(), asked);
        assert_eq!(outcome.reason, FinishReason::Length);
        assert!(tokens.iter().all(|&token| token < VOCAB && token != EOS));
    }
}

#[test]
fn a_seed_fixes_random_tokens() {
    let draw = |sequence: u64, seed| {
        let mut asked = request(sequence, &[5]);
        asked.sampling.seed = seed;
        asked.sampling.max_tokens = 20;
        answer(Pattern::Random { seed: 1 }, limits(), asked).0
    };
    assert_eq!(draw(1, Some(4)), draw(2, Some(4)));
    assert_ne!(draw(1, Some(4)), draw(1, Some(5)));
}

#[test]
fn a_first_token_tells_of_the_prompt() {
    let mut state = State::new(
        Limits {
            cached_tokens: 2,
            ..limits()
        },
        ids(&[7]),
    );
    submit(&mut state, request(1, &[5]));
    submit(&mut state, request(2, &[5, 6, 7, 8]));
    let frame = step(&mut state);
    let cached: Vec<u32> = frame
        .first
        .iter()
        .map(|first| first.cached_tokens)
        .collect();
    assert_eq!(cached, [0, 2], "one token is always left to compute");
    assert_eq!(frame.opened[1].prompt_tail.0, [5, 6, 7, 8]);
    assert!(step(&mut state).first.is_empty());
    let stats = state.stats();
    assert_eq!(
        (stats.prompt_tokens_total, stats.prefix_cache_hits_total),
        (5, 2)
    );
}

#[test]
fn requests_wait_for_a_place_in_order() {
    let mut state = State::new(
        Limits {
            max_num_seqs: 2,
            ..limits()
        },
        ids(&[7]),
    );
    for sequence in 1..=4 {
        let mut asked = request(sequence, &[5]);
        asked.sampling.max_tokens = 2;
        submit(&mut state, asked);
    }
    assert_eq!(step(&mut state).ids.0, [1, 2]);
    let stats = state.stats();
    assert_eq!(
        (stats.num_requests_running, stats.num_requests_waiting),
        (2, 2)
    );
    assert!(stats.kv_cache_usage_perc > 0.0);
    assert_eq!(step(&mut state).finished.len(), 2);
    assert_eq!(step(&mut state).ids.0, [3, 4]);
}

#[test]
fn more_requests_than_may_be_open_are_refused_whoever_sends_them() {
    let mut state = State::new(
        Limits {
            max_requests: 2,
            ..limits()
        },
        ids(&[7]),
    );
    for owner in [1, 2, 3] {
        state.submit(request(owner, &[5]), owner, Instant::now());
    }
    let StepOutput { frames, credit } = state.step(Instant::now());
    let frame = &frames[0].1;
    assert_eq!(frame.finished.len(), 1);
    assert_eq!(frame.finished[0].outcome.status, 429);
    assert_eq!(frame.ids[frame.finished[0].row as usize], 3);
    assert_eq!(credit[&3], 1);
    state.abort(&[RequestId::new(0, 0, 1)], 1);
    state.submit(request(4, &[5]), 3, Instant::now());
    assert_eq!(state.stats().num_requests_waiting, 1);
}

#[test]
fn aborts_concern_the_owner_and_end_once() {
    let mut state = state();
    for sequence in 1..=3 {
        submit(&mut state, request(sequence, &[5]));
    }
    step(&mut state);
    submit(&mut state, request(4, &[5]));
    state.abort(&[RequestId(1), RequestId(4), RequestId(9)], PEER);
    state.abort(&[RequestId(2)], PEER + 1);
    state.abort(&[RequestId(1)], PEER);
    state.ended(&[RequestId(3), RequestId(3)]);
    let output = state.step(Instant::now());
    assert_eq!(output.credit[&PEER], 3);
    let frame = &output.frames[0].1;
    assert_eq!(frame.ids.0, [1, 4, 3, 2]);
    assert_eq!(frame.counts.0, [0, 0, 0, 1]);
    assert_eq!(frame.opened[0].id, RequestId(4), "who is ended was opened");
    let reasons: Vec<_> = frame
        .finished
        .iter()
        .map(|end| end.outcome.reason)
        .collect();
    assert_eq!(
        reasons,
        [FinishReason::Abort, FinishReason::Abort, FinishReason::Stop]
    );
}

#[test]
fn a_request_that_cannot_run_gets_an_error() {
    let mut state = state();
    let mut idle = request(4, &[5]);
    idle.sampling.max_tokens = 0;
    let mut stops = request(5, &[5]);
    stops.sampling.stop_token_ids = vec![VOCAB];
    let long = vec![5; limits().max_model_len as usize];
    for refused in [
        request(1, &[]),
        request(2, &[VOCAB]),
        request(3, &long),
        idle,
        stops,
    ] {
        submit(&mut state, refused);
    }
    let output = state.step(Instant::now());
    assert_eq!(output.credit[&PEER], 5);
    for finished in &output.frames[0].1.finished {
        assert_eq!(
            (finished.outcome.reason, finished.outcome.status),
            (FinishReason::Error, 400)
        );
        assert!(!finished.outcome.message.is_empty());
    }
}

#[test]
fn a_second_request_of_a_living_id_is_dropped() {
    let mut state = state();
    submit(&mut state, request(1, &[5]));
    submit(&mut state, request(1, &[6]));
    let output = state.step(Instant::now());
    assert_eq!(output.frames[0].1.ids.0, [1]);
    assert_eq!(output.credit[&PEER], 1);
}

#[test]
fn who_leaves_takes_his_requests_along() {
    let mut state = state();
    submit(&mut state, request(1, &[5]));
    state.submit(request(2, &[5]), PEER + 1, Instant::now());
    step(&mut state);
    assert_eq!(state.leave(PEER), 1);
    let output = state.step(Instant::now());
    assert_eq!(output.frames[0].1.finished.len(), 1);
    assert!(
        output.credit.is_empty(),
        "nobody is there to be granted credit"
    );
}

#[test]
fn a_lost_detokenizer_costs_its_requests_alone() {
    let mut state = State::new(
        Limits {
            detokenizers: 2,
            ..limits()
        },
        ids(&[7]),
    );
    for sequence in 0..4 {
        submit(&mut state, request(sequence, &[5]));
    }
    let frames = state.step(Instant::now()).frames;
    let rows: Vec<_> = frames
        .iter()
        .map(|(lane, frame)| (*lane, frame.ids.0.clone()))
        .collect();
    assert_eq!(rows, [(0, vec![0, 2]), (1, vec![1, 3])]);
    assert_eq!(state.lose_detokenizer(0), 2);
    let output = state.step(Instant::now());
    assert_eq!(output.credit[&PEER], 2);
    let [(0, told), (1, _)] = &output.frames[..] else {
        panic!("{:?}", output.frames);
    };
    // The successor knows none of them.
    let opened: Vec<u64> = told.opened.iter().map(|opened| opened.id.0).collect();
    assert_eq!((opened, told.ids.0.clone()), (vec![0, 2], vec![0, 2]));
    let ends = told
        .finished
        .iter()
        .map(|end| (end.outcome.reason, end.outcome.status));
    assert!(ends.eq([(FinishReason::Error, 503); 2]));
}
