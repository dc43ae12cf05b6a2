"""Between JAX and the compiler. A marked call arrives in `lower`, which leaves it to stock XLA or to us.

- `edge`: what speaks to JAX: jaxprs in, custom calls out. `edge.marked` makes what JAX traces, and
  `edge.intercept` gets the call back; `edge.capture` divides it, `edge.custom_call` calls our programs.
- `choice`: what chooses between our candidates and stock XLA. `choice.choose` leads from a `Request` to a
  `Choice`; `choice.decide` surveys and measures; `choice.decisions` and `choice.plan_cache` store what was
  found; `choice.variants` has the programs.
- `run`: what runs: the calls of a wrapper, the work in the background, the stopwatch.
- `state`: the context of a lowering, by thread.
"""
