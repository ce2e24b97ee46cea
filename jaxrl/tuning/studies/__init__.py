"""The Optuna study of a sweep, whose trials several workers share."""
