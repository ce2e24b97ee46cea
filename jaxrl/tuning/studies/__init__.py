"""The Optuna study of a sweep, whose trials several workers share."""

__all__ = [
    "damage",
    "events",
    "heartbeat",
    "paused_agents",
    "pruner",
    "samplers",
    "storage",
    "stored_trials",
    "study",
    "trial_queue",
]
