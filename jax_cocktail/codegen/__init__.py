"""One C-family emitter for all targets; a target is a small table of spellings.

Placement, memory and barriers are decided before. The emitter decides what is local to a loop over elements:
how threads share it, in which order it runs, and whether it becomes a function.

Emitters build nodes (`codegen.kernel`), which passes rewrite before they are printed.
"""
