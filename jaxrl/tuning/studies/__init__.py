"""The Optuna study of a sweep, whose trials several workers share."""

__all__ = [
    "damage",
    "events",
    "heartbeat",
    "paused_agents",
    "pruner",
    "storage",
    "stored_trials",
    "study",
    "trial_queue",
    "trial_sampler",
    "whole_study",
]
