"""The reference interpreter: runs any program with NumPy."""
