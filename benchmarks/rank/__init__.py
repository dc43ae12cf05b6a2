"""The cost models of the host against measured times."""
