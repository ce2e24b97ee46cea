"""Simulators on the host, stepped by callbacks from inside the compiled program."""
