"""Decoder-only transformers: one decoder, and a file for what sets each family apart."""
