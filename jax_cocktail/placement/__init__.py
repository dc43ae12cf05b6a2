"""Placement divides work and values over a mesh of units: tile groups, tiling, the recurrence bound."""
