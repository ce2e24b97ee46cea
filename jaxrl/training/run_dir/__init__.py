"""The files of a run: its directory, manifest, checkpoints and best agent."""
