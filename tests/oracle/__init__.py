"""Interpreters that tests compare with: on whole values, and unit by unit in planned memory."""
