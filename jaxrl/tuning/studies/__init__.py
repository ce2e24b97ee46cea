"""The Optuna study of a sweep, whose trials several workers share."""

__all__ = [
    "cma_es",
    "damage",
    "heartbeat",
    "json_values",
    "optional_optuna",
    "pruner",
    "samplers",
    "storage",
    "stored_trials",
    "study",
    "trial_queue",
]
