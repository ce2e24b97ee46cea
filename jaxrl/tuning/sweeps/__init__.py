"""Hyperparameter searches driven from the host, on an Optuna study that several workers share."""

__all__ = [
    "api",
    "best_agents",
    "display",
    "lanes",
    "loop",
    "ranking",
    "state",
    "strategy",
    "sweep_file",
    "trials",
    "whole_study",
]
