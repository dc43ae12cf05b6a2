"""Random JAX programs by seed, independent of the strategies that the tests use."""
