"""Token ids to text. The work is done in Rust (``rust/llmrt-detokenizer``); here is its process."""
