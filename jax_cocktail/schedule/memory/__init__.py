"""Memory planning: sharing among values, and among units."""
