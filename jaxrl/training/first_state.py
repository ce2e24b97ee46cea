"""The training state with which a run goes on: a new one, or that of its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxrl.distributed import processes
from jaxrl.distributed.spread import describe_unused
from jaxrl.envs.host.callback import closing_on_error
from jaxrl.training.fine_tuning import Learned, begin_from, check_agent
from jaxrl.training.progress.rows import Progress
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.training.run_dir.directory import has_begun
from jaxrl.types import Algorithm


def first_state(
    algo: Algorithm,
    config: Any,
    init: jax.stages.Lowered,
    seed: int,
    run_dir: Path | None,
    checkpoints: Checkpoints | None,
    learned: Learned | None,
    announce: Callable[[str], None],
) -> tuple[Any, Progress]:
    """Return the state of the newest checkpoint, or a new one, and the progress until then.

    Args:
      init: the algorithm's, lowered.
      checkpoints: of the run; None without a run directory.
      learned: what a new state begins with.
      announce: shows a line to the user.

    Raises:
      ValueError: if the run began from another agent, or its checkpoint cannot be read.
    """
    key = jax.random.key(seed)
    saved_update = None if checkpoints is None else checkpoints.latest()
    if saved_update is not None and not algo.env.checkpointable:
        key = jax.random.fold_in(key, saved_update)  # so that new episodes differ from old ones
    state = init.compile()(config, key)
    with closing_on_error(state):
        processes.check_spread(algo.name, state)
        used = {device for leaf in jax.tree.leaves(state) for device in leaf.devices()}
        num_used = len(used & set(jax.local_devices()))
        if unused := describe_unused(num_used, "jaxrl train uses more by --devices"):
            announce(unused)
        if checkpoints is not None and saved_update is not None:
            like = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
            )
            simulation = None if algo.env.checkpointable else state.simulation
            del state  # there may be no room for two replays
            return restore(checkpoints, like, simulation, announce)
        if run_dir is not None and has_begun(run_dir):
            announce("there is no checkpoint: the run begins anew")
        if run_dir is not None:
            check_agent(run_dir, learned)
        return state if learned is None else begin_from(state, learned), Progress()


def restore(
    checkpoints: Checkpoints, like: Any, simulation: Any, announce: Callable[[str], None]
) -> tuple[Any, Progress]:
    """Return the state and the progress of the newest checkpoint.

    Args:
      like: the shapes and devices of a state.
      simulation: the environments to go on with; None for the saved ones.
      announce: as for `first_state`.
    """
    whole = simulation is None
    saved, saved_progress = checkpoints.restore(like, whole)
    progress = Progress.from_json(saved_progress, checkpoints.latest(), checkpoints.progress_file)
    announce(
        f"resumed after update {progress.update:,}"
        + ("" if whole else "; the environments start new episodes")
        + checkpoints.other_versions
    )
    return saved if whole else saved._replace(simulation=simulation), progress
