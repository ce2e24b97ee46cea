"""Tell from which trained agent a run began, by the entry `init_from` of its manifest."""

from __future__ import annotations

from typing import Any

Agent = dict[str, Any] | None
"""The entry `init_from`: the origin of the agent that a run began from, {} for one of no run."""


def is_other_agent(began: Agent, given: Agent) -> bool:
    """Return whether two agents are not the same; None is no agent."""
    if began is None or given is None:
        return began is not given
    return any(began.get(name) != given.get(name) for name in ("run_id", "update"))


def lacks_agent(began: Agent, run: str) -> ValueError:
    """Return the error that a run is to begin without the agent that it began from before."""
    if began is None:
        return ValueError(f"{run} began from no agent: leave out init_from (--init-from)")
    of_run = f", that of {began.get('run_dir')}, update {began.get('update')}" if began else ""
    return ValueError(
        f"{run} began from a trained agent{of_run}: give it again (init_from, --init-from)"
    )
