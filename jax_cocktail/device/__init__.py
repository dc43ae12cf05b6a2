"""Machines that programs are compiled for: how they are spelled, what is known of them, what was measured."""
