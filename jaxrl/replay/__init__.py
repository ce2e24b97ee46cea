"""Replay memory in the training state, on the device."""
