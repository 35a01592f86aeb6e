//! What tokenization leaves behind. A process of its own: other tests would be counted too.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use llmrt_text::Tokenizer;
use llmrt_text::pool::{PoolOptions, TokenizerPool};

/// Resident memory of this process, KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.and_then(|line| line.split_whitespace().next());
    figure.unwrap().parse().unwrap()
}

/// A byte-level tokenizer that knows the letters a to z.
fn letters() -> Tokenizer {
    let vocab: serde_json::Map<_, _> = (b'a'..=b'z')
        .zip(0..)
        .map(|(letter, id)| (char::from(letter).to_string(), serde_json::Value::from(id)))
        .chain([("Ġ".to_owned(), 26.into())])
        .collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    let json = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

#[test]
fn a_long_prompt_leaves_little_behind() {
    let pool = TokenizerPool::new(letters(), PoolOptions::new(2)).unwrap();
    let before = resident();
    let text = "ab ".repeat(400_000);
    let mut pending = Box::pin(
        pool.submit(text.len(), move |tokenizer| {
            let count = tokenizer.encode(&text, false).unwrap().len();
            (count, resident())
        })
        .unwrap(),
    );
    let mut context = Context::from_waker(Waker::noop());
    let deadline = Instant::now() + Duration::from_secs(20);
    let (count, during) = loop {
        if let Poll::Ready(result) = pending.as_mut().poll(&mut context) {
            break result.unwrap();
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(count, 1_200_000);
    assert!(during > before + 64 * 1024, "{before} KiB, then {during}");
    // The free end of a thread's own heap stays, 64 MiB at most.
    while resident().saturating_sub(before) > (during - before) / 2 {
        assert!(
            Instant::now() < deadline,
            "{before} KiB, {during}, then {}",
            resident()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
