//! What a step costs, from the state to the bytes of its frame: `cargo run --release --example step_cost [ROWS]`.

use std::hint::black_box;
use std::time::Instant;

use llmrt_mock::{Limits, Pattern, State};
use llmrt_wire::{Message, Output, Request, RequestId, Sampling};

const STEPS: u32 = 2000;

fn main() {
    let rows = std::env::args()
        .nth(1)
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(1000);
    let tokens: [u32; 10] = [338, 253, 1277, 282, 260, 28, 284, 1449, 347, 339];
    for (name, pattern) in [
        (
            "tokens",
            Pattern::Tokens {
                tokens: tokens.into(),
            },
        ),
        ("random", Pattern::Random { seed: 1 }),
    ] {
        println!("{name}: {:.1} ns per token", cost(rows, pattern));
    }
}

/// Nanoseconds per token of `rows` requests.
fn cost(rows: u32, pattern: Pattern) -> f64 {
    let limits = Limits {
        max_model_len: 8192,
        vocab_size: 49152,
        max_num_seqs: rows as usize,
        max_requests: rows as usize,
        eos_token_ids: vec![2],
        answer_tokens: 0,
        cached_tokens: 0,
        detokenizers: 1,
    };
    let mut state = State::new(limits, pattern);
    for sequence in 0..u64::from(rows) {
        let request = Request {
            id: RequestId::new(0, 0, sequence),
            prompt: vec![5; 32].into(),
            sampling: Sampling {
                max_tokens: u32::MAX,
                ..Sampling::default()
            },
            output: Output::default(),
            priority: 0,
            cache_salt: String::new(),
            deadline_ms: None,
        };
        state.submit(request, 1, Instant::now());
    }
    state.step(Instant::now());
    let began = Instant::now();
    for _ in 0..STEPS {
        for (_, frame) in state.step(Instant::now()).frames {
            black_box(Message::from(black_box(frame)).encode());
        }
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS) / f64::from(rows)
}
