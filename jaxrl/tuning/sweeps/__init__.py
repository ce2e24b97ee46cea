"""Hyperparameter searches driven from the host, on an Optuna study that several workers share."""
