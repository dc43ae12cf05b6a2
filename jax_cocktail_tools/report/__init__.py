"""Texts, pictures and pages of reports, and differences of two."""
