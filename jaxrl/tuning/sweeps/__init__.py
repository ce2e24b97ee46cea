"""Hyperparameter searches driven from the host, on an Optuna study that several workers share."""

__all__ = [
    "api",
    "best_agents",
    "display",
    "heartbeat",
    "lanes",
    "loop",
    "ranking",
    "samplers",
    "state",
    "storage",
    "study",
    "trials",
]
