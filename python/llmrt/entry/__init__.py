"""HTTP in, results out. The work is done in Rust (``rust/llmrt-entry``); here is the process of a worker."""
