"""Loops with a bound on their trips, which have a reverse-mode derivative."""
