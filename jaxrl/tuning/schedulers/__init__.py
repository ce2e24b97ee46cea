"""Schedulers: rules that decide after each phase which trials of a search go on."""

__all__ = ["check", "contract", "halving", "hypertrick", "ledger", "random_search", "wrapper"]
