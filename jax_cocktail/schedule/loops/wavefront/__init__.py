"""Wavefronts: recurrences that feed each other run side by side, a step apart."""
