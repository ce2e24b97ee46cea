"""Explorers: populations whose agents copy better ones and change their settings in training."""

__all__ = ["gaussian_process", "multi_frequency", "pb2", "pbt"]
