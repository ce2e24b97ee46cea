"""Pure formulas of reinforcement learning: arrays in, arrays out."""

__all__ = ["distributions", "masks", "minibatches", "normalization", "optimizers", "returns"]
