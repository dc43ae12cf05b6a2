"""A CUDA card: driver, handler, and the measurements of first use."""
