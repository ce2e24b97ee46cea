"""Schedulers: rules that decide after each phase which trials of a search go on."""
