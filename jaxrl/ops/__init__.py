"""Pure formulas: arrays in, arrays out."""

__all__ = [
    "distributions",
    "gaussian_process",
    "masks",
    "minibatches",
    "normalization",
    "optimizers",
    "returns",
    "statistics",
]
