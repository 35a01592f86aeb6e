"""Runs step plans on a model: per-slot state, batches, the forward pass, sampling."""

import os

# Waiting OpenMP threads spin by default, which stalls every parallel region while another process needs the core they
# spin on. libgomp reads this when torch loads it, so it has to stand before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
