//! What a step costs in the detokenizer's state, without its links.
//!
//! `cargo run --release -p llmrt-detokenizer --example state_cost -- MODEL.gguf`

use std::process::ExitCode;
use std::time::Instant;

use llmrt_detokenizer::State;
use llmrt_text::decode::TokenDecoder;
use llmrt_text::{TokenizerError, TokenizerKind, TokenizerSource};
use llmrt_wire::{Opened, Output, RequestId, TokenFrame};

const STEPS: usize = 2000;
const TEXT: &str =
    "The quick brown fox jumps over the lazy dog, 42 times; naïve 日本語 text and 👩‍👩‍👧 too.\n";

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: state_cost MODEL.gguf");
        return ExitCode::FAILURE;
    };
    let source = TokenizerSource {
        kind: TokenizerKind::Gguf,
        path: path.into(),
    };
    match run(&source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(source: &TokenizerSource) -> Result<(), TokenizerError> {
    let text = source.load(0)?.encode(TEXT, false)?;
    println!("rows  stop strings  us per step  us per token");
    for rows in [1, 64, 256] {
        for stop in [vec![], vec!["\n\nUser:".to_owned(), "###".to_owned()]] {
            let mut state = State::new(TokenDecoder::load(source)?);
            let output = Output {
                stop: stop.clone(),
                ..Output::default()
            };
            let us = measure(&mut state, rows, &text, &output);
            println!(
                "{rows:4}  {:12}  {us:11.2}  {:12.3}",
                stop.len(),
                us / rows as f64
            );
        }
    }
    Ok(())
}

/// Mean microseconds of a step with one token for each of `rows` requests.
fn measure(state: &mut State, rows: usize, text: &[u32], output: &Output) -> f64 {
    let ids: Vec<RequestId> = (0..rows as u64)
        .map(|sequence| RequestId::new(0, 0, sequence))
        .collect();
    let opened = ids.iter().map(|&id| Opened {
        id,
        prompt_tail: Vec::new().into(),
        output: output.clone(),
    });
    state.step(TokenFrame {
        opened: opened.collect(),
        ..TokenFrame::default()
    });
    // Frames are made beforehand: they come decoded from the link.
    let frames: Vec<TokenFrame> = (0..STEPS)
        .map(|step| TokenFrame {
            step: step as u64,
            ids: ids.iter().map(|id| id.0).collect::<Vec<_>>().into(),
            counts: vec![1; rows].into(),
            tokens: (0..rows)
                .map(|row| text[(step + row) % text.len()])
                .collect::<Vec<_>>()
                .into(),
            ..TokenFrame::default()
        })
        .collect();
    let start = Instant::now();
    for frame in frames {
        std::hint::black_box(state.step(frame));
    }
    start.elapsed().as_secs_f64() * 1e6 / STEPS as f64
}
