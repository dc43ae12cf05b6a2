"""Recovers loops and branches of single batch elements from what `jax.vmap` made of them."""
