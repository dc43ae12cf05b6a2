"""Tests; a package, so that helper modules are imported as `tests.null.programs`."""
