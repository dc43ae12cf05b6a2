"""Passes between translation and emission: simplification, loops, `vmap`, memory, barriers, the policy."""
