"""One run, from its first step to its resumption."""
