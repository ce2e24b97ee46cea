"""Explorers: populations whose agents copy better ones and change their settings in training."""
