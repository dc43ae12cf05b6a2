"""Machines to compile for: their code generation targets, specifications and measured figures."""
