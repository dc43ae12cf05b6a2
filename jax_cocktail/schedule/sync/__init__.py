"""Synchronisation between units, and between the threads of a unit."""
