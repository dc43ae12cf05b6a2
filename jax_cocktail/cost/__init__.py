"""The costs of programs: flops, bytes, barriers and seconds, on a CPU, a GPU and under stock XLA."""
