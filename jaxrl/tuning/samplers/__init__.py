"""Samplers: the settings with which the trials of a search in one program begin."""

__all__ = ["check", "expected_improvement", "sobol"]
