"""Choosing tokens: a function of (seed, position, logits), vectorised over the batch, one file per feature."""
