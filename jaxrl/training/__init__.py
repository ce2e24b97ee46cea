"""One training run: its program, loop, files, policy and evaluation; populations of runs."""
