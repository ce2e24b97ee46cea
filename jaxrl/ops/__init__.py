"""Pure formulas of reinforcement learning: arrays in, arrays out."""
