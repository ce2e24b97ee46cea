"""Simulators on the host, stepped by callbacks from inside the compiled program."""

__all__ = ["callback", "conversions", "pools", "vector_pool", "worker"]
