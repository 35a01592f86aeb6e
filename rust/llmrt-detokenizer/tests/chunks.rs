//! A request's answer does not depend on how its tokens were spread over frames, nor on its neighbours.

mod common;

use std::collections::HashMap;

use common::{END, HELLO, JAPAN, Step, VOCAB, bytes, decoder, id, outcome};
use llmrt_detokenizer::State;
use llmrt_wire::{Ended, FinishReason, Output, RequestId, TextFrame};
use proptest::prelude::*;

/// One request: its tokens, cut into rows; the scheduler ends it with the last row.
#[derive(Clone, Debug)]
struct Script {
    output: Output,
    rows: Vec<Vec<u32>>,
    /// Steps before its first row.
    delay: usize,
    /// Log probabilities are told, with so many of the likeliest.
    logprobs: Option<u32>,
}

/// What arrived of a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    text: String,
    tokens: u32,
    reason: Option<FinishReason>,
    stop_string: Option<String>,
    ids: Vec<u32>,
    chosen: Vec<f32>,
    top_ids: Vec<u32>,
    prompts: usize,
}

/// Log probabilities that tell tokens apart: one value each, and ids of the likeliest.
fn values(tokens: &[u32], top: u32) -> (Vec<f32>, Vec<u32>) {
    let chosen = tokens.iter().map(|&token| -(token as f32)).collect();
    let top_ids = tokens
        .iter()
        .flat_map(|&token| (0..top).map(move |rank| token ^ rank));
    (chosen, top_ids.collect())
}

fn script() -> impl Strategy<Value = Script> {
    let token = prop_oneof![
        6 => Just(u32::from(b'a')),
        4 => Just(u32::from(b'b')),
        1 => prop::sample::select("é日".bytes().map(u32::from).collect::<Vec<_>>()),
        1 => prop::sample::select(vec![END, HELLO, JAPAN, VOCAB, u32::MAX]),
        1 => 0..VOCAB,
    ];
    // Whole characters too, so that multi-byte text often stands beside a stop string.
    let tokens = prop_oneof![
        4 => token.prop_map(|token| vec![token]),
        1 => Just("é".bytes().map(u32::from).collect::<Vec<_>>()),
        1 => Just("日本".bytes().map(u32::from).collect::<Vec<_>>()),
    ];
    let tokens = prop::collection::vec(tokens, 0..20).prop_map(|parts| parts.concat());
    let cuts = prop::collection::vec(0usize..4, 1..24);
    let rows = (tokens, cuts).prop_map(|(tokens, cuts)| rows(&tokens, &cuts));
    let stop = prop::collection::vec("[abé日]{1,4}|hello|\u{FFFD}", 0..4);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let logprobs = prop::option::of(0u32..3);
    (stop, flags, 0u32..5, rows, 0usize..6, logprobs).prop_map(
        |(stop, flags, min_tokens, rows, delay, logprobs)| {
            let (include_stop, skip_special_tokens, token_ids) = flags;
            Script {
                output: Output {
                    stop,
                    include_stop,
                    skip_special_tokens,
                    min_tokens,
                    token_ids,
                },
                rows,
                delay,
                logprobs,
            }
        },
    )
}

/// Cuts tokens into rows of the given sizes; the last row takes the rest.
fn rows(tokens: &[u32], cuts: &[usize]) -> Vec<Vec<u32>> {
    let mut rest = tokens;
    let mut rows = Vec::new();
    for &size in cuts {
        let (row, behind) = rest.split_at(size.min(rest.len()));
        rows.push(row.to_vec());
        rest = behind;
    }
    if let Some(last) = rows.last_mut() {
        last.extend_from_slice(rest);
    }
    rows
}

/// Lossy text of bytes, without an unfinished last character.
fn settled(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    let unfinished = bytes.utf8_chunks().last().is_some_and(|chunk| {
        std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none())
    });
    if unfinished {
        text.pop();
    }
    text
}

/// The answer by search over the whole text, token by token; and whether it ended behind the last token, when the
/// unfinished rest was flushed.
fn oracle(script: &Script) -> (Answer, bool) {
    let Output {
        stop,
        include_stop,
        skip_special_tokens,
        min_tokens,
        ..
    } = &script.output;
    let tokens = script.rows.concat();
    let mut raw = Vec::new();
    let mut before = 0;
    for number in 1..=tokens.len() + 1 {
        // Behind the last token, the unfinished rest is flushed.
        let text = match tokens.get(number - 1) {
            Some(&END) if !skip_special_tokens => {
                raw.extend_from_slice(b"<|end|>");
                settled(&raw)
            }
            Some(&token) => {
                raw.extend(bytes(token));
                settled(&raw)
            }
            None => String::from_utf8_lossy(&raw).into_owned(),
        };
        let flushed = number > tokens.len();
        let number = number.min(tokens.len());
        for end in before + 1..=text.len() {
            let longest = stop
                .iter()
                .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()))
                .max_by_key(|s| s.len());
            if let (Some(stop), true) = (longest, number as u32 > *min_tokens) {
                let answer = Answer {
                    text: text[..if *include_stop { end } else { end - stop.len() }].to_owned(),
                    tokens: number as u32,
                    reason: Some(FinishReason::Stop),
                    stop_string: Some(stop.clone()),
                    ..told(script, number)
                };
                return (answer, flushed);
            }
        }
        before = text.len();
    }
    let answer = Answer {
        text: String::from_utf8_lossy(&raw).into_owned(),
        tokens: tokens.len() as u32,
        reason: Some(FinishReason::Length),
        ..told(script, tokens.len())
    };
    (answer, true)
}

/// What must be told of the first tokens of a script besides their text.
fn told(script: &Script, tokens: usize) -> Answer {
    let counted = &script.rows.concat()[..tokens];
    let mut answer = Answer::default();
    if script.output.token_ids || script.logprobs.is_some() {
        answer.ids = counted.to_vec();
    }
    if let Some(top) = script.logprobs {
        (answer.chosen, answer.top_ids) = values(counted, top);
        answer.prompts = 1;
    }
    answer
}

/// Collects frames into answers and checks what must hold of every frame.
#[derive(Default)]
struct Collector {
    answers: HashMap<RequestId, Answer>,
    ended: Vec<RequestId>,
}

impl Collector {
    fn take(&mut self, frames: Vec<(u16, TextFrame)>, ended: Ended) {
        self.ended.extend(ended.ids);
        for (worker, frame) in frames {
            assert!(!frame.ids.is_empty());
            frame.check().expect("columns fit together");
            self.take_told(&frame);
            let mut start = 0;
            for (row, (&id, &end)) in frame.ids.iter().zip(frame.ends.iter()).enumerate() {
                let id = RequestId(id);
                assert_eq!(id.worker(), worker);
                let answer = self.answers.entry(id).or_default();
                assert_eq!(answer.reason, None, "a row behind the end of {id}");
                let text = &frame.text[start..end as usize];
                answer.text.push_str(text);
                answer.tokens += frame.counts[row];
                if let Some(finished) = frame
                    .finished
                    .iter()
                    .find(|finished| finished.row as usize == row)
                {
                    answer.reason = Some(finished.outcome.reason);
                    answer.stop_string.clone_from(&finished.outcome.stop_string);
                }
                assert!(
                    !text.is_empty() || answer.reason.is_some(),
                    "an empty delta"
                );
                start = end as usize;
            }
        }
    }
}

impl Collector {
    fn take_told(&mut self, frame: &TextFrame) {
        for (row, ids) in frame
            .tokens
            .iter()
            .flat_map(|tokens| tokens.iter(&frame.counts))
        {
            self.answer(frame, row).ids.extend_from_slice(ids);
        }
        for (row, values) in frame
            .logprobs
            .iter()
            .flat_map(|logprobs| logprobs.iter(&frame.counts))
        {
            let answer = self.answer(frame, row);
            answer.chosen.extend_from_slice(values.chosen);
            answer.top_ids.extend_from_slice(values.top_ids);
        }
        for prompt in &frame.prompt_logprobs {
            assert_eq!(prompt.chosen.as_slice(), [-1.5]);
            self.answer(frame, prompt.row).prompts += 1;
        }
    }

    fn answer(&mut self, frame: &TextFrame, row: u32) -> &mut Answer {
        self.answers
            .entry(RequestId(frame.ids[row as usize]))
            .or_default()
    }
}

fn play(scripts: &[Script]) -> Collector {
    let mut state = State::new(decoder());
    let mut collector = Collector::default();
    let steps = scripts
        .iter()
        .map(|script| script.delay + script.rows.len())
        .max()
        .unwrap_or(0);
    for number in 0..steps {
        let mut step = Step::default();
        for (script, request) in scripts.iter().zip(ids()) {
            let Some(index) = number.checked_sub(script.delay) else {
                continue;
            };
            let Some(row) = script.rows.get(index) else {
                continue;
            };
            if index == 0 {
                step = step.open(request, script.output.clone());
            }
            step = step.row(request, row);
            if let Some(top) = script.logprobs {
                let (chosen, top_ids) = values(row, top);
                step = step.logprobs(top, &chosen, &top_ids, index == 0);
            }
            if index + 1 == script.rows.len() {
                step = step.end(outcome(FinishReason::Length));
            }
        }
        let (frames, ended) = state.step(step.0);
        collector.take(frames, ended);
    }
    let stats = state.stats();
    assert_eq!((stats.open, stats.stopped), (0, 0));
    collector
}

fn ids() -> impl Iterator<Item = RequestId> {
    (0..).map(|number| id((number % 3) as u16, number))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn answers_do_not_depend_on_frames(scripts in prop::collection::vec(script(), 1..5)) {
        let collector = play(&scripts);
        for (script, request) in scripts.iter().zip(ids()) {
            let (expected, flushed) = oracle(script);
            prop_assert_eq!(&collector.answers[&request], &expected);
            // The scheduler is told exactly when the stop string came before its own end of the request.
            let early = script.rows[..script.rows.len() - 1].concat().len();
            let told = collector.ended.iter().filter(|&&ended| ended == request).count();
            prop_assert_eq!(told, usize::from(expected.tokens as usize <= early && !flushed));
        }
    }
}
