//! A model file from strangers: refused, or every tensor can be asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmrt_gguf::{Dtype, GgufFile};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = GgufFile::from_bytes(bytes.to_vec()) {
        for tensor in model.tensors().iter().take(8) {
            let _ = model.read(&tensor.name, Dtype::F32);
        }
    }
});
