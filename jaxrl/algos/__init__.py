"""Algorithms: one paper a file."""
