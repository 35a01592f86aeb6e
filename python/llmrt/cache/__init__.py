"""Memory of the KV cache by page: who holds which page, and which pages hold reusable prefixes."""
