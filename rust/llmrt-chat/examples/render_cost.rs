//! Prints what rendering costs: microseconds per conversation on one thread.
//!
//! `cargo run --release -p llmrt-chat --example render_cost`

use std::hint::black_box;
use std::time::Instant;

use llmrt_chat::{ChatError, ChatTemplate, RenderOptions, TemplateOptions};
use serde_json::{Value, json};

const TEMPLATES: [(&str, &str); 3] = [
    (
        "smollm2",
        include_str!("../../../tests/golden/chat/smollm2/template.jinja"),
    ),
    (
        "llama32",
        include_str!("../../../tests/golden/chat/llama32/template.jinja"),
    ),
    (
        "qwen3",
        include_str!("../../../tests/golden/chat/qwen3/template.jinja"),
    ),
];

fn conversation(messages: usize, bytes_each: usize) -> Value {
    let text = "word ".repeat(bytes_each / 5);
    (0..messages)
        .map(|i| {
            let role = if i % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": text})
        })
        .collect()
}

fn main() -> Result<(), ChatError> {
    let options = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    for (name, source) in TEMPLATES {
        let started = Instant::now();
        let tokens = TemplateOptions {
            bos_token: Some("<s>".into()),
            ..TemplateOptions::default()
        };
        let template = ChatTemplate::new(source, tokens)?;
        println!(
            "{name}: compiled in {:.0} us",
            started.elapsed().as_secs_f64() * 1e6
        );
        for (messages, bytes_each, rounds) in
            [(3, 100, 20_000), (100, 200, 1_000), (1_000, 1_000, 50)]
        {
            let conversation = conversation(messages, bytes_each);
            let started = Instant::now();
            for _ in 0..rounds {
                black_box(template.render(black_box(&conversation), &options)?);
            }
            let micros = started.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
            println!("  {messages:>5} messages of {bytes_each} bytes: {micros:.1} us");
        }
    }
    Ok(())
}
