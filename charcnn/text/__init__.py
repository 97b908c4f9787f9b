"""Texts: their encoding, texts in memory and in files, and where labels go."""
