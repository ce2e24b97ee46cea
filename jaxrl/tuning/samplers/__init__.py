"""Samplers: the settings with which trials begin, in one program and on the host."""
