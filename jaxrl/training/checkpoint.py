"""Checkpoints of the whole training state, through Orbax.

A checkpoint has every array of the state (parameters, optimizer, keys, counters, normalizers,
environments) and the run's progress. Host environments cannot be saved; without them the state's
field `simulation` is None, and a resumed run starts new episodes with an exact learner. Saves are
atomic: a kill at any moment leaves the earlier checkpoints intact.

If several processes train one agent, each writes and reads the parts of arrays on its own devices,
so no process needs room for the whole. A checkpoint does not depend on the number of devices; the
state is restored onto the devices of the state that it replaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import PyTree, is_key

UNREADABLE = frozenset("[]\\")
"""Characters of paths that Orbax writes but cannot read: brackets are a pattern to it, and a
backslash is a slash to its storage."""


def check_path(directory: Path) -> None:
    """Raise `ValueError` if checkpoints in a directory could not be read again."""
    if found := sorted(UNREADABLE & set(str(directory.absolute()))):
        raise ValueError(
            f"checkpoints cannot be kept in {directory.absolute()}, whose path has "
            f"{' '.join(found)}; choose another directory"
        )


class Checkpoints:
    """The newest `keep` checkpoints of a run, in one directory."""

    def __init__(self, directory: str | Path, keep: int = 2, together: bool = False):
        """Open the directory, or make it.

        Args:
          directory: folder of the checkpoints.
          keep: number of checkpoints to keep.
          together: all processes see the directory and call each method at the same time.
        """
        import orbax.checkpoint as ocp  # takes a third of a second, which other programs save

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
        """Return the update count of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, num_updates: int, state: Any, progress: dict[str, Any], whole: bool) -> None:
        """Save the state after `num_updates` updates.

        Args:
          num_updates: number of the checkpoint.
          state: a training state.
          progress: anything that JSON can hold.
          whole: include the environments.

        Raises:
          OSError: if it cannot be written (a full disk); earlier checkpoints stay.
        """
        saved = _without_keys(state if whole else _without_environments(state))
        try:
            self._manager.save(
                num_updates,
                args=self._args.Composite(
                    state=self._args.StandardSave(saved), progress=self._args.JsonSave(progress)
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
        """Return the newest state and its progress.

        Args:
          like: a state of the same shapes, or its `eval_shape`; the arrays of the restored state
            lie on the devices of this one.
          whole: include the environments; otherwise `simulation` is None.

        Raises:
          FileNotFoundError: if there is no checkpoint.
          ValueError: if the newest one is damaged or of another program.
        """
        like = like if whole else _without_environments(like)
        template = _template(like)
        saved = self._read(
            state=self._args.StandardRestore(template), progress=self._args.JsonRestore()
        )
        shapes = jax.tree.map(lambda x: (x.shape, x.dtype), template)
        if jax.tree.map(lambda x: (x.shape, x.dtype), saved["state"]) != shapes:
            raise ValueError(
                f"checkpoint {self.directory / str(self.latest())} has arrays of other shapes than "
                "this config and network make; use the config and network of the run"
            )
        return _with_keys(saved["state"], like), saved["progress"]

    def progress(self) -> dict[str, Any]:
        """Return the progress that was saved with the newest state.

        Raises:
          FileNotFoundError, ValueError: as `restore`.
        """
        return self._read(progress=self._args.JsonRestore())["progress"]

    def _read(self, **parts: Any) -> Any:
        """Read parts of the newest checkpoint."""
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


def _without_environments(state: Any) -> Any:
    return state._replace(simulation=None)


_key_data = jax.jit(jax.random.key_data)  # compiled, since other processes may have parts of it


def _without_keys(state: PyTree) -> PyTree:
    """Return arrays that Orbax can save: key data for keys, None for arrays without elements."""

    def convert(x: Any) -> Any:
        if x.size == 0:
            return None
        return _key_data(x) if is_key(x) else x

    return jax.tree.map(convert, state)


def _with_keys(saved: PyTree, like: PyTree) -> PyTree:
    """Undo `_without_keys`, for a state with the keys and shapes of `like`."""

    def convert(like: Any, x: Any) -> jax.Array:
        if x is None:
            x = jnp.zeros(_saved_shape(like).shape, _saved_shape(like).dtype)
        x = x if isinstance(x, jax.Array) else jnp.array(x)  # a copy, because it will be donated
        return jax.random.wrap_key_data(x) if is_key(like) else x

    return jax.tree.map(convert, like, saved)


def _template(like: PyTree) -> PyTree:
    """Return shapes, dtypes and devices of `_without_keys(like)`; NumPy arrays without devices."""

    def abstract(x: Any) -> jax.ShapeDtypeStruct | np.ndarray | None:
        data = _saved_shape(x)
        if data.size == 0:
            return None
        if getattr(x, "sharding", None) is None:
            return np.zeros(data.shape, data.dtype)
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)

    return jax.tree.map(abstract, like)


def _saved_shape(x: Any) -> Any:
    """Return `x`, or the shape and dtype of the data of a key."""
    return jax.eval_shape(jax.random.key_data, x) if is_key(x) else x
