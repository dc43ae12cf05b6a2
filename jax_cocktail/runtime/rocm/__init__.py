"""The HIP runtime through ctypes."""
