//! Bytes of a link: refused, or the one encoding of a message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmrt_wire::{Message, greeting_version};

fuzz_target!(|raw: &[u8]| {
    let _ = greeting_version(raw);
    if let Ok(message) = Message::decode(raw) {
        assert_eq!(message.encode(), raw);
    }
});
