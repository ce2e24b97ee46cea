"""The Optuna study of a sweep, whose trials several workers share."""

__all__ = [
    "ask_tell",
    "cma_es",
    "damage",
    "heartbeat",
    "optional_optuna",
    "pruner",
    "samplers",
    "storage",
    "stored_trials",
    "study",
    "trial_queue",
]
