"""Passes that reshape loops: unrolling, scalar replacement, distribution, wavefronts."""
