"""Compare, draw and film what runs and searches left behind."""
