"""Passes between translation and emission: simplify, loops, `vmap`, memory, barriers; and the policy."""
