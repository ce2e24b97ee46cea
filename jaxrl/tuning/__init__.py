"""Hyperparameter search over populations of agents."""
