"""Lets entry nodes of other hosts in. The work is done in Rust (``rust/llmrt-tunnel``); here is its process."""
