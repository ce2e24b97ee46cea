"""Samplers: the settings with which trials begin, in one program and on the host."""

__all__ = [
    "ask_tell",
    "check",
    "cma_es",
    "expected_improvement",
    "optional_optuna",
    "optuna_values",
    "smac_search",
    "sobol",
]
