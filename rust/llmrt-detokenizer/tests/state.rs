//! What single steps make of single requests.

mod common;

use common::{END, HELLO, Step, decoder, id, outcome, stops, tokens};
use llmrt_detokenizer::State;
use llmrt_wire::{Ended, FinishReason, Outcome, Output, TextFrame};

/// Runs a step that must concern worker 0 alone; returns its frame, empty when there is none.
fn step(state: &mut State, step: Step) -> (TextFrame, Ended) {
    let (mut frames, ended) = state.step(step.0);
    assert!(frames.len() <= 1, "{frames:?}");
    match frames.pop() {
        Some((worker, frame)) => {
            assert_eq!(worker, 0);
            (frame, ended)
        }
        None => (TextFrame::default(), ended),
    }
}

#[test]
fn rows_wait_until_there_is_something_to_show() {
    let mut state = State::new(decoder());
    let one = id(0, 1);
    let kanji = tokens("日");
    let (frame, _) = step(
        &mut state,
        Step::default()
            .open(one, Output::default())
            .row(one, &kanji[..1])
            .first(5),
    );
    assert_eq!(frame, TextFrame::default());
    let (frame, _) = step(&mut state, Step::default().row(one, &kanji[1..]));
    assert_eq!(
        (frame.text.as_str(), &frame.counts[..], &frame.ends[..]),
        ("日", &[3][..], &[3][..])
    );
    assert_eq!((frame.first[0].row, frame.first[0].cached_tokens), (0, 5));
    let (frame, ended) = step(
        &mut state,
        Step::default()
            .row(one, &[])
            .end(outcome(FinishReason::Length)),
    );
    assert_eq!((frame.text.as_str(), &frame.counts[..]), ("", &[0][..]));
    assert_eq!(frame.finished[0].outcome, outcome(FinishReason::Length));
    assert!(frame.first.is_empty() && ended.ids.is_empty());
    assert_eq!(state.stats().open, 0);
}

#[test]
fn rows_go_to_the_worker_that_made_the_id() {
    let mut state = State::new(decoder());
    let mut step = Step::default();
    for worker in [7, 0, 7, 4095] {
        let request = id(worker, u64::from(worker) + step.0.ids.len() as u64);
        step = step
            .open(request, Output::default())
            .row(request, &[HELLO])
            .first(worker.into());
    }
    step.0.step = 9;
    let (frames, _) = state.step(step.0);
    let workers: Vec<u16> = frames.iter().map(|(worker, _)| *worker).collect();
    assert_eq!(workers, [7, 0, 4095]);
    let seven = &frames[0].1;
    assert_eq!(
        (seven.step, seven.text.as_str(), &seven.ends[..]),
        (9, "hello hello ", &[6, 12][..])
    );
    assert_eq!(
        seven
            .first
            .iter()
            .map(|first| first.row)
            .collect::<Vec<_>>(),
        [0, 1]
    );
}

#[test]
fn a_length_finish_inside_a_character_flushes_it() {
    let mut state = State::new(decoder());
    let one = id(0, 1);
    let half = &tokens("日")[..2];
    let (frame, _) = step(
        &mut state,
        Step::default()
            .open(one, Output::default())
            .row(one, half)
            .end(outcome(FinishReason::Length)),
    );
    assert_eq!(
        (frame.text.as_str(), &frame.counts[..]),
        ("\u{FFFD}", &[2][..])
    );
}

#[test]
fn a_stop_string_ends_a_request_once() {
    let mut state = State::new(decoder());
    let one = id(0, 1);
    let text = tokens("héSTOP and more");
    let (frame, ended) = step(
        &mut state,
        Step::default()
            .open(one, stops(&["STOP", "x"]))
            .row(one, &text),
    );
    assert_eq!((frame.text.as_str(), &frame.counts[..]), ("hé", &[7][..]));
    let stopped = &frame.finished[0].outcome;
    assert_eq!(
        (stopped.reason, stopped.stop_string.as_deref()),
        (FinishReason::Stop, Some("STOP"))
    );
    assert_eq!(ended.ids, [one]);
    assert_eq!((state.stats().open, state.stats().stopped), (0, 1));

    let (frame, ended) = step(&mut state, Step::default().row(one, &text));
    assert_eq!((frame, ended.ids.len()), (TextFrame::default(), 0));
    let (frame, ended) = step(
        &mut state,
        Step::default()
            .row(one, &text)
            .end(outcome(FinishReason::Stop)),
    );
    assert_eq!((frame, ended.ids.len()), (TextFrame::default(), 0));
    assert_eq!(state.stats().stopped, 0);
}

#[test]
fn a_stop_string_in_the_last_row_needs_no_word_to_the_scheduler() {
    let mut state = State::new(decoder());
    let one = id(0, 1);
    let output = Output {
        include_stop: true,
        ..stops(&["b"])
    };
    let (frame, ended) = step(
        &mut state,
        Step::default()
            .open(one, output)
            .row(one, &tokens("abc"))
            .end(outcome(FinishReason::Length)),
    );
    assert_eq!((frame.text.as_str(), &frame.counts[..]), ("ab", &[2][..]));
    assert_eq!(frame.finished[0].outcome.reason, FinishReason::Stop);
    assert!(ended.ids.is_empty());
    assert_eq!((state.stats().open, state.stats().stopped), (0, 0));
}

#[test]
fn a_stop_string_that_never_completes_is_released() {
    let mut state = State::new(decoder());
    let one = id(0, 1);
    let (frame, _) = step(
        &mut state,
        Step::default()
            .open(one, stops(&["STOP"]))
            .row(one, &tokens("a STO")),
    );
    assert_eq!(frame.text, "a ");
    let (frame, _) = step(
        &mut state,
        Step::default()
            .row(one, &[])
            .end(outcome(FinishReason::Length)),
    );
    assert_eq!((frame.text.as_str(), &frame.counts[..]), ("STO", &[0][..]));
}

#[test]
fn a_stop_token_counts_but_shows_only_on_request() {
    for (include_stop, skip_special_tokens, text) in [
        (false, false, "hello "),
        (true, false, "hello <|end|>"),
        (true, true, "hello "),
    ] {
        let mut state = State::new(decoder());
        let one = id(0, 1);
        let output = Output {
            include_stop,
            skip_special_tokens,
            ..Output::default()
        };
        let stopped = Outcome {
            stop_token: Some(END),
            ..outcome(FinishReason::Stop)
        };
        let (frame, _) = step(
            &mut state,
            Step::default()
                .open(one, output)
                .row(one, &[HELLO, END])
                .end(stopped.clone()),
        );
        assert_eq!((frame.text.as_str(), &frame.counts[..]), (text, &[2][..]));
        assert_eq!(frame.finished[0].outcome, stopped);
    }
}

#[test]
fn unknown_rows_are_ignored() {
    let mut state = State::new(decoder());
    step(
        &mut state,
        Step::default().open(id(0, 1), Output::default()),
    );
    let stranger = Step::default()
        .row(id(0, 9), &[HELLO, u32::MAX])
        .end(outcome(FinishReason::Abort))
        .row(id(0, 1), &[HELLO]);
    let (frame, _) = step(&mut state, stranger);
    assert_eq!(
        (&frame.ids[..], frame.text.as_str()),
        (&[id(0, 1).0][..], "hello ")
    );
    assert!(frame.finished.is_empty());
}

#[test]
fn marks_may_come_in_any_order() {
    let mut state = State::new(decoder());
    let ids = [id(0, 1), id(0, 2), id(0, 3)];
    let mut all = Step::default();
    for (id, reason) in ids.into_iter().zip([
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Abort,
    ]) {
        all = all.open(id, Output::default());
        all = all
            .row(id, &[HELLO])
            .first(id.0 as u32)
            .end(outcome(reason));
    }
    all.0.first.reverse();
    all.0.finished.swap(0, 1);
    let (frame, _) = step(&mut state, all);
    let cached: Vec<u32> = frame
        .first
        .iter()
        .map(|first| first.cached_tokens)
        .collect();
    assert_eq!(cached, ids.map(|id| id.0 as u32));
    let reasons: Vec<FinishReason> = frame
        .finished
        .iter()
        .map(|end| end.outcome.reason)
        .collect();
    assert_eq!(
        reasons,
        [
            FinishReason::Stop,
            FinishReason::Length,
            FinishReason::Abort
        ]
    );
    assert_eq!(state.stats().open, 0);
}

#[test]
fn lost_ends_tell_every_open_request() {
    let mut state = State::new(decoder());
    let (one, two, three) = (id(0, 1), id(1, 2), id(1, 3));
    let output = || stops(&["STOP"]);
    let opening = Step::default()
        .open(one, output())
        .open(two, output())
        .open(three, output());
    state.step(
        opening
            .row(one, &tokens("ST"))
            .row(three, &tokens("STOP"))
            .0,
    );

    let (farewell, ended) = state.fail_worker(1, 503, "gone");
    let farewell = farewell.expect("request two was open");
    assert_eq!(
        (&farewell.ids[..], &ended.ids[..]),
        (&[two.0][..], &[two][..])
    );
    assert_eq!(state.fail_worker(1, 503, "gone"), (None, Ended::default()));
    assert_eq!((state.stats().open, state.stats().stopped), (1, 2));

    let frames = state.fail_all(503, "core lost");
    assert_eq!(frames.len(), 1);
    let (worker, frame) = &frames[0];
    assert_eq!(
        (*worker, &frame.ids[..], &frame.counts[..]),
        (0, &[one.0][..], &[2][..])
    );
    let outcome = &frame.finished[0].outcome;
    assert_eq!(
        (outcome.reason, outcome.status, outcome.message.as_str()),
        (FinishReason::Error, 503, "core lost")
    );
    assert_eq!((state.stats().open, state.stats().stopped), (0, 0));
}
