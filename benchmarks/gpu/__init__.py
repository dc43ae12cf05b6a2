"""What `benchmarks/gpu_check.py` is made of."""
