"""Checkpoints of the whole training state, through Orbax.

A checkpoint holds every array of the state (parameters, optimizer, keys, counters, normalizers,
environments) and the run's progress. Host environments cannot be saved: their part of the state,
`state.simulation`, is left out, and a resumed run starts new episodes with an exact learner.
Saves are atomic, so a kill at any moment leaves the checkpoints before it intact.

Of several processes that train one agent, each writes and reads the parts of arrays that lie on its
devices, so no process needs room for the whole. A checkpoint does not depend on how many devices
there were: it is restored onto those of the state that it is to replace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import PyTree, is_key

EPISODES_KEPT_APART = "simulation"


UNREADABLE = frozenset("[]\\")
"""Orbax takes the brackets in a path for a pattern, and writes what it cannot read again; a
backslash is a slash to its storage."""


def check_path(directory: Path) -> None:
    """Raise `ValueError` if checkpoints in a directory could not be read again."""
    if found := sorted(UNREADABLE & set(str(directory.absolute()))):
        raise ValueError(
            f"checkpoints cannot be kept in {directory.absolute()}, whose path has "
            f"{' '.join(found)}; choose another directory"
        )


def _plain(state: PyTree) -> PyTree:
    """Typed keys become their data; arrays without elements, which Orbax refuses, None."""

    def plain(x: Any) -> Any:
        if x.size == 0:
            return None
        return _key_data(x) if is_key(x) else x

    return jax.tree.map(plain, state)


_key_data = jax.jit(jax.random.key_data)  # compiled, since other processes may have parts of it


def _template(state: PyTree) -> PyTree:
    """What `_plain` gives to such a state: on its devices, or NumPy's where it names none."""

    def abstract(x: Any) -> jax.ShapeDtypeStruct | np.ndarray | None:
        data = _data_of(x)
        if data.size == 0:
            return None
        if getattr(x, "sharding", None) is None:
            return np.zeros(data.shape, data.dtype)
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)

    return jax.tree.map(abstract, state)


def _data_of(x: Any) -> Any:
    """Shape and dtype of what is saved of an array."""
    return jax.eval_shape(jax.random.key_data, x) if is_key(x) else x


def _like(saved: PyTree, state: PyTree) -> PyTree:
    """Device arrays, keys where `state` has keys."""

    def convert(like: Any, x: Any) -> jax.Array:
        if x is None:
            x = jnp.zeros(_data_of(like).shape, _data_of(like).dtype)
        x = x if isinstance(x, jax.Array) else jnp.array(x)  # a copy, because it will be donated
        return jax.random.wrap_key_data(x) if is_key(like) else x

    return jax.tree.map(convert, state, saved)


def _learner(state: Any, with_environments: bool) -> Any:
    return state if with_environments else state._replace(**{EPISODES_KEPT_APART: None})


class Checkpoints:
    """The checkpoints of one run directory, the newest `keep` of them."""

    def __init__(self, directory: str | Path, keep: int = 2, together: bool = False):
        """`together`: all processes have the directory and call each method at the same time."""
        import orbax.checkpoint as ocp  # a third of a second, which runs without a directory save

        options, own = ocp.options.MultiprocessingOptions, jax.process_index()
        check_path(Path(directory))
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._args = ocp.args
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=False,
                enable_async_checkpointing=False,
                multiprocessing_options=(
                    options() if together else options(primary_host=own, active_processes={own})
                ),
            ),
        )

    def latest(self) -> int | None:
        """The update count of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, num_updates: int, state: Any, progress: dict[str, Any], whole: bool) -> None:
        """Save the state after `num_updates`; `whole` includes the environments.

        Raises:
          OSError: if it cannot be written (a full disk); earlier checkpoints stay.
        """
        try:
            self._manager.save(
                num_updates,
                args=self._args.Composite(
                    state=self._args.StandardSave(_plain(_learner(state, whole))),
                    progress=self._args.JsonSave(progress),
                ),
                force=True,
            )
            self._manager.wait_until_finished()
        except Exception as error:
            raise OSError(
                f"checkpoint {num_updates} could not be written to {self.directory}: {error}. "
                f"The one before it, {self.latest()}, is intact; free some space and resume"
            ) from error

    def restore(self, like: Any, whole: bool) -> tuple[Any, dict[str, Any]]:
        """The newest state, in the shape of `like` (a state or its `eval_shape`), and progress.

        Its arrays lie on the devices on which `like` has them. Without `whole`, `simulation` is
        None.

        Raises:
          FileNotFoundError: if there is no checkpoint.
          ValueError: if the newest one is damaged or of another program.
        """
        learner = _learner(like, whole)
        template = _template(learner)
        saved = self._read(
            state=self._args.StandardRestore(template), progress=self._args.JsonRestore()
        )
        shapes = jax.tree.map(lambda x: (x.shape, x.dtype), template)
        if jax.tree.map(lambda x: (x.shape, x.dtype), saved["state"]) != shapes:
            raise ValueError(
                f"checkpoint {self.directory / str(self.latest())} has arrays of other shapes than "
                "this config and network make"
            )
        return _like(saved["state"], learner), saved["progress"]

    def progress(self) -> dict[str, Any]:
        """What was saved beside the newest state.

        Raises:
          FileNotFoundError, ValueError: as `restore`.
        """
        return self._read(progress=self._args.JsonRestore())["progress"]

    def _read(self, **parts: Any) -> Any:
        """Parts of the newest checkpoint."""
        step = self.latest()
        if step is None:
            raise FileNotFoundError(f"no checkpoint in {self.directory}")
        try:
            return self._manager.restore(step, args=self._args.Composite(**parts))
        except Exception as error:
            raise ValueError(
                f"checkpoint {self.directory / str(step)} is damaged or belongs to another network "
                f"or version: {str(error)[:500]}. Delete that folder to fall back on an earlier one"
            ) from error

    def close(self) -> None:
        """Release Orbax's resources."""
        self._manager.close()
