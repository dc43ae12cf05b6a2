"""Passes between translation and emission: simplify, loops, `vmap`, memory, barriers; the policy; and
`partition`, which selects the regions before translation."""
