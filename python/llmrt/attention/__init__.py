"""Attention over paged KV memory behind one small protocol."""
