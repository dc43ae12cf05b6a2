"""Between JAX and the compiler: interception, capture, custom calls, decisions."""
