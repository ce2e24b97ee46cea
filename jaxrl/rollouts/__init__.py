"""From an agent and its environments to a trajectory."""

__all__ = ["agent", "pipelined", "rollout", "simulation"]
