"""Explorers: populations whose agents copy better ones and change their settings in training."""

__all__ = ["check", "lineage", "multi_frequency", "pb2", "pbt"]
