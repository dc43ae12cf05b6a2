"""Answers to the handlers in C++, and the drivers of GPUs. Does not import jax."""
