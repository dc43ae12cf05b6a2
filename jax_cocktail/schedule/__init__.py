"""Passes between translation and emission: simplify, canonicalise, memory plan."""
