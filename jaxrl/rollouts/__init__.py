"""From an agent and its environments to a trajectory."""
