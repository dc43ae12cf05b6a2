"""Passes that make a program smaller or simpler, and never slower."""
