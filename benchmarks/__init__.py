"""Benchmarks. They time programs that are ready: none runs on stock XLA while a compiler works beside it."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_COCKTAIL_COMPILE", "now")
