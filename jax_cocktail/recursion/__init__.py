"""Recursion for JAX: tracing, derivatives and execution strategies. Imports jax."""
