"""Handlers that XLA calls at run time, and the CUDA driver. Does not import jax."""
