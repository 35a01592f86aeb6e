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

/// A byte-level tokenizer that knows the letters a to z. With `foreign` its words are made in a way that only the library
/// knows, and that comes to the same for letters.
fn letters(foreign: bool) -> Tokenizer {
    let vocab: serde_json::Map<_, _> = (b'a'..=b'z')
        .zip(0..)
        .map(|(letter, id)| (char::from(letter).to_string(), serde_json::Value::from(id)))
        .chain([("Ġ".to_owned(), 26.into())])
        .collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    let pre_tokenizer = if foreign {
        let punctuation = serde_json::json!({"type": "Punctuation", "behavior": "Isolated"});
        serde_json::json!({"type": "Sequence", "pretokenizers": [punctuation, byte_level]})
    } else {
        byte_level.clone()
    };
    let json = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": pre_tokenizer, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

/// Tokenizes a prompt of 1.2 million tokens on a pool; returns KiB resident before, and when its tokens were there.
fn tokenize(foreign: bool, deadline: Instant) -> (u64, u64) {
    let pool = TokenizerPool::new(letters(foreign), PoolOptions::new(2)).unwrap();
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
    let (count, during) = loop {
        if let Poll::Ready(result) = pending.as_mut().poll(&mut context) {
            break result.unwrap();
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(count, 1_200_000);
    (before, during)
}

#[test]
fn a_long_prompt_takes_little_and_leaves_little_behind() {
    let deadline = Instant::now() + Duration::from_secs(20);
    // Without the library: the text, and four bytes for each token in a list that grows by doubling.
    let (before, during) = tokenize(false, deadline);
    assert!(during < before + 24 * 1024, "{before} KiB, then {during}");
    let (before, during) = tokenize(true, deadline);
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
