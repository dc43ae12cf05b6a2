"""Random JAX programs by seed, independent of the strategies that the tests use."""

import os

os.environ.setdefault("JAX_COCKTAIL_VERIFY", "passes")  # a fault is told of the pass that makes it
