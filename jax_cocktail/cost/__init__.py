"""What programs cost: flops, bytes, barriers and seconds, on a CPU, a GPU and under stock XLA."""
