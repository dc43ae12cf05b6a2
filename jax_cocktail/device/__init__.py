"""GPUs: what is known of them and what was measured."""
