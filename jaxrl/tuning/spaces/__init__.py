"""Search spaces: distributions of hyperparameters, and when these are searched."""
