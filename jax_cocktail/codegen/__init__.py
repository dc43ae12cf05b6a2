"""One C-family emitter for all targets; a target is a small table of spellings. Emitters decide nothing."""
