"""Pure formulas of reinforcement learning: arrays in, arrays out."""

__all__ = ["distributions", "minibatches", "normalization", "optimizers", "returns"]
