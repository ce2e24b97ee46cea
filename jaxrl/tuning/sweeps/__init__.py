"""Hyperparameter searches driven from the host, on an Optuna study."""
