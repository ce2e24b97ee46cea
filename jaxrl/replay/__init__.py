"""Replay memory in the training state, on the device."""

__all__ = ["frames", "priorities", "ring", "sequences", "transitions"]
