"""Handlers that XLA calls at run time, and the drivers of GPUs. Does not import jax."""
