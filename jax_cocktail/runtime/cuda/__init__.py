"""The CUDA runtime: driver, handler, and the measurements at first use of a card."""
