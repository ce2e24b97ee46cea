"""Hyperparameter searches driven from the host, on an Optuna study that several workers share."""

__all__ = [
    "api",
    "best_agents",
    "display",
    "final_runs",
    "lane_group",
    "lanes",
    "loop",
    "settings",
    "state",
    "sweep_file",
    "trials",
]
