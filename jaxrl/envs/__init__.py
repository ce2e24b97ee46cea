"""Environments: one adapter a file, all under the `Env` contract, found by `make`."""

from jaxrl.envs.registry import ids, make

__all__ = ["ids", "make"]
