"""Handlers that XLA calls at run time, and the CUDA driver. Knows nothing of jax."""
