"""Programs as users of JAX write them, beside the same programs in what they would pick instead."""
