"""Tests that need neither jax, nor a compiler, nor a device."""
