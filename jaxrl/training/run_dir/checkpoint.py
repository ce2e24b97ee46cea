"""Checkpoints of the whole training state, through Orbax.

A checkpoint has every array of the state (parameters, optimizer, keys, counters, normalizers,
environments) and the run's progress. Host environments cannot be saved; without them the state's
field `simulation` is None, and a resumed run starts new episodes with an exact learner. Saves are
atomic: a kill at any moment leaves the earlier checkpoints intact.

After Orbax has written a checkpoint, it is sealed (`jaxrl.files.seal`) with the digests of its
files, its number and the identity of its run. Only a checkpoint whose seal holds is used: a damaged
one gives way to the one before it, and one of another run is an error.

If several processes train one agent, each writes and reads the parts of arrays on its own devices,
so no process needs room for the whole. A checkpoint does not depend on the number of devices; the
state is restored onto the devices of the state that it replaces.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import with_current_names
from jaxrl.distributed import processes
from jaxrl.files import intact
from jaxrl.files import seal as seals
from jaxrl.files.paths import check_path
from jaxrl.types import PyTree, is_key


class Checkpoints:
    """The newest `keep` checkpoints of a run, in one directory."""

    def __init__(
        self,
        directory: str | Path,
        identity: dict[str, Any],
        keep: int = 2,
        together: bool = False,
        repair: bool = True,
    ):
        """Open the directory, or make it, and verify the newest checkpoint.

        A damaged one is named by a warning and moved into `damaged-checkpoints` beside the
        directory; the one before it is used instead. What a killed process had begun to write is
        deleted.

        Args:
          directory: folder of the checkpoints.
          identity: of the run, as `jaxrl.training.run_dir.manifest.identity` returns it.
          keep: number of checkpoints to keep.
          together: all processes see the directory and call each method at the same time.
          repair: False leaves damaged and unfinished checkpoints where they are, for a directory
            that another process may write to.

        Raises:
          ValueError: if none of the checkpoints is intact, or the newest intact one belongs to
            another run.
        """
        import orbax.checkpoint as ocp  # takes a third of a second, which other programs save

        options, own = ocp.options.MultiprocessingOptions, jax.process_index()
        check_path(Path(directory))
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._identity, self._keep, self._together = identity, keep, together
        self._sealer = ThreadPoolExecutor(1)
        self._sealing: Future[None] | None = None
        self._newest: int | None = None
        self.rows: dict[str, Any] | None = None
        """The record of the rows of metrics before the newest; None if it has none."""
        self.other_versions = ""
        """A text with the versions that the newest was saved with, where they are other ones."""
        self._on_first(lambda: self._verify(repair))
        if together:
            self._newest = json.loads(processes.broadcast_text(json.dumps(self._newest)))
        self._args, self._metadata_of = ocp.args, ocp.StandardCheckpointHandler().metadata
        try:
            self._manager = ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=None,  # `_seal` deletes old ones, once the new one is sealed
                    create=False,
                    cleanup_tmp_directories=repair,  # of a process that was killed while saving
                    enable_async_checkpointing=False,
                    multiprocessing_options=(
                        options() if together else options(primary_host=own, active_processes={own})
                    ),
                ),
            )
        except Exception as error:  # Orbax reads `_CHECKPOINT_METADATA` of the older ones too
            found = intact.changed_since_sealed(self.directory)
            raise ValueError(
                f"a checkpoint in {self.directory} is damaged: {'; '.join([*found, str(error)])}. "
                "Delete its folder to go on with the others"
            ) from error

    def _on_first(self, function: Callable[[], None]) -> None:
        """Call a function on the first of several processes that save together."""
        if self._together:
            processes.call_on_first(function)
        else:
            function()

    def _verify(self, repair: bool) -> None:
        """Find the newest intact checkpoint; move the damaged ones away."""
        found = intact.newest_intact(self.directory, self._identity, with_current_names)
        self._newest, self.rows = found.update, found.seal.get("rows")
        self.other_versions = (
            f"; it was saved with other {found.versions}" if found.versions else ""
        )
        instead = "none" if found.update is None else f"checkpoint {found.update}"
        for update, line in found.damaged.items():
            moved = (
                f"; moved to {intact.move_aside(self.directory / str(update))}" if repair else ""
            )
            warnings.warn(f"{line}. {instead} is used instead{moved}", stacklevel=4)

    def latest(self) -> int | None:
        """Return the update count of the newest checkpoint, None if there is none.

        Raises:
          OSError: if the one saved last could not be sealed.
        """
        self._on_first(self._wait_for_seal)
        return self._newest

    def save(
        self,
        num_updates: int,
        state: Any,
        progress: dict[str, Any],
        whole: bool,
        rows: dict[str, Any] | None = None,
    ) -> None:
        """Save the state after `num_updates` updates.

        A thread computes the digests while the caller goes on. The checkpoint counts once it is
        sealed, and the one before it is kept until then.

        Args:
          num_updates: number of the checkpoint.
          state: a training state.
          progress: anything that JSON can hold.
          whole: include the environments.
          rows: the record of the rows of metrics so far, which the seal keeps.

        Raises:
          OSError: if it, or the one before it, cannot be written (a full disk); earlier
            checkpoints stay.
        """
        before = self.latest()
        saved = _without_keys(state if whole else _without_environments(state))
        if not self._together and jax.process_count() > 1:
            saved = jax.tree.map(np.asarray, saved)  # Orbax refuses arrays of one process alone
        try:
            with _without_logs():
                self._manager.save(
                    num_updates,
                    args=self._args.Composite(
                        state=self._args.StandardSave(saved), progress=self._args.JsonSave(progress)
                    ),
                    force=True,
                )
                self._manager.wait_until_finished()
        except Exception as error:
            raise self._unwritten(num_updates, error) from error
        self._newest = num_updates
        if not self._together or processes.is_first():
            self._sealing = self._sealer.submit(self._seal, num_updates, before, rows)

    def _seal(self, update: int, before: int | None, rows: dict[str, Any] | None) -> None:
        """Seal a checkpoint, and delete all but the newest.

        Those with a larger number are of a sweep that fell back on an earlier checkpoint.
        """
        entries = {"update": update, "identity": self._identity}
        entries |= {} if rows is None else {"rows": rows}
        try:
            seals.write(self.directory / str(update), entries)
        except OSError as error:
            self._newest = before
            raise self._unwritten(update, error) from error
        updates = intact.numbers(self.directory)
        kept = [number for number in updates if number <= update][: self._keep]
        for old in set(updates) - set(kept):
            shutil.rmtree(self.directory / str(old), ignore_errors=True)

    def _wait_for_seal(self) -> None:
        """Wait until the checkpoint saved last is sealed."""
        sealing, self._sealing = self._sealing, None
        if sealing is not None:
            sealing.result()

    def _unwritten(self, update: int, error: Exception) -> OSError:
        return OSError(
            f"checkpoint {update} could not be written to {self.directory}: {error}. Those before "
            "it are intact; free some space and resume"
        )

    def restore(self, like: Any, whole: bool) -> tuple[Any, dict[str, Any]]:
        """Return the newest state and its progress, as JSON.

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
        with self._reading() as folder:
            found = self._metadata_of(folder / "state").tree  # pyrefly: ignore[bad-argument-type]
        if difference := _first_difference(found, template):
            raise ValueError(
                f"checkpoint {folder} is of another algorithm, config, network or environment: "
                f"{difference}. Use those of the run"
            )
        saved = self._read(
            state=self._args.StandardRestore(template), progress=self._args.JsonRestore()
        )
        return _with_keys(saved["state"], like), saved["progress"]

    def progress(self) -> dict[str, Any]:
        """Return the progress that was saved with the newest state.

        Raises:
          FileNotFoundError, ValueError: as `restore`.
        """
        return self._read(progress=self._args.JsonRestore())["progress"]

    @property
    def progress_file(self) -> Path:
        """The file of the newest checkpoint's progress."""
        return self.directory / str(self._newest) / "progress" / "metadata"

    def _read(self, **parts: Any) -> Any:
        """Read parts of the newest checkpoint."""
        with self._reading():
            return self._manager.restore(self._newest, args=self._args.Composite(**parts))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Path]:
        """Yield the folder of the newest checkpoint; explain errors."""
        step = self.latest()
        if step is None:
            raise FileNotFoundError(f"no checkpoint in {self.directory}")
        folder = self.directory / str(step)
        try:
            yield folder
        except Exception as error:
            raise ValueError(
                f"checkpoint {folder} is damaged or of another version{self.other_versions}: "
                f"{str(error)[:500]}. Use the versions that saved it, or delete that folder to "
                "fall back on an earlier one"
            ) from error

    def close(self) -> None:
        """Wait for the last seal, and release Orbax's resources.

        Raises:
          OSError: if the checkpoint saved last could not be sealed.
        """
        try:
            self._wait_for_seal()
        finally:
            self._sealer.shutdown()
            self._manager.close()


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Keep Orbax from logging the errors that it raises, with their tracebacks."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


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


def _first_difference(saved: PyTree, expected: PyTree) -> str:
    """Return a text about the first array whose type or shape differs; empty if there is none."""

    def arrays(tree: PyTree) -> dict[str, str]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {
            jax.tree_util.keystr(path, simple=True, separator="."): f"{x.dtype} {list(x.shape)}"
            for path, x in leaves
        }

    found, needed = arrays(saved), arrays(expected)
    for name in [*needed, *found]:
        here, there = needed.get(name, "missing"), found.get(name, "missing")
        if here != there:
            return f"{name} is {there} there and {here} here"
    return ""


def _saved_shape(x: Any) -> Any:
    """Return `x`, or the shape and dtype of the data of a key."""
    return jax.eval_shape(jax.random.key_data, x) if is_key(x) else x
