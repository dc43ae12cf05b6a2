"""Recursion for JAX: tracing, derivatives, and the ways to run it. Speaks to JAX."""
