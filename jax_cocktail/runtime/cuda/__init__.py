"""The CUDA driver, and the measurements at first use of a card."""
