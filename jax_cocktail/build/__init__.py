"""Compiles source text to binaries, through the cache on disk."""
