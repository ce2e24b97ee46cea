"""The Optuna study of a sweep, whose trials several workers share."""

__all__ = [
    "cma_es",
    "damage",
    "events",
    "heartbeat",
    "optional_optuna",
    "paused_agents",
    "pruner",
    "samplers",
    "storage",
    "stored_trials",
    "study",
    "trial_queue",
]
