"""The tools around the compiler: its command line, models to time, and pictures of reports and timelines.

They import `jax_cocktail`. The compiler imports them at use, in three modules: `jax_cocktail.__main__`,
`jax_cocktail.report.report` and `jax_cocktail.timeline.trace`. Nothing here is public by itself.
"""
