"""Damage to files of runs and sweeps: what is read must be what was written, or an error."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from faults.jobs import Ended, scratch_directory
from faults.outcomes import SURVIVED, Kind, Outcome, Verdict
from faults.warm import WARM
from faults.work import digest, rows_of

HALF, WHOLE = 7, 14
"""Updates of the prepared runs, and of those that are resumed."""
SEED, OTHER_SEED = 3, 4
CHECKPOINTS, METRICS, STUDY, BEST, NEWEST = "checkpoints", "metrics", "study", "best", "newest"


# --- what is prepared, damaged and read; in the warm process -------------------------------------


@functools.cache
def _share_programs() -> None:
    """Compile what all cases call once: the programs are not what is tested here."""
    from jaxrl.training import loop

    compile_chunk = loop.compile_chunk
    compiled: dict[Any, Any] = {}

    def compile_once(algo: Any, config: Any, state: Any) -> Any:
        if algo not in compiled:
            compiled[algo] = compile_chunk(algo, config, state)
        return compiled[algo]

    loop.compile_chunk = compile_once
    loop.plot_run = lambda run_dir, title: run_dir


def train(directory: Path, updates: int, seed: int, rate: float, chunk: int = 100) -> Any:
    """Begin or resume a run; return what damage must not change."""
    import small_algorithms

    import jaxrl

    _share_programs()
    algo = small_algorithms.algorithm("ppo")
    config = small_algorithms.CONFIGS["ppo"].replace(learning_rate=rate)
    result = jaxrl.run(
        algo, config, seed=seed, run_dir=directory, resume=True, log_every=1, eval_episodes=1,
        total_steps=updates * algo.env.num_envs * algo.num_steps(config), num_evaluations=0,
        chunk_updates=chunk, checkpoint_seconds=0.0, progress_bar=False,
    )  # fmt: skip
    summary = {name: x for name, x in result.summary.items() if "second" not in name}
    return {"state": digest(result.state), "rows": rows_of(directory), "summary": summary}


def act(directory: Path) -> Any:
    """Load a policy and let it act; return its learner and its actions."""
    import jax
    import small_algorithms

    from jaxrl.training.policy import load_policy

    algo = small_algorithms.algorithm("ppo")
    loaded = load_policy(directory)
    core = loaded.state._replace(simulation=None)
    key, obs = jax.random.key(1), jax.random.normal(jax.random.key(2), (64, 4))
    _, actions = _act()(algo, loaded.config, core, obs, key)
    return {"learner": digest(core), "actions": digest(actions)}


@functools.cache
def _act() -> Callable[..., Any]:
    import jax

    def act(algo: Any, config: Any, state: Any, obs: Any, key: Any) -> Any:
        return algo.act(config, state, (), obs, key, True)

    return jax.jit(act, static_argnums=0)


def compare(directory: Path, other: Path) -> Any:
    """Compare two runs, and return the numbers of the page."""
    from jaxrl.analysis import comparison

    runs = [comparison.read_run(path) for path in (directory, other)]
    groups = [group for run in runs for group in comparison.group_runs([run])]
    comparison.group_runs(runs)
    curves = [[x.tolist() for x in comparison.mean_curve(group, "steps")[1]] for group in groups]
    return {"returns": [[run.env_id, run.final_return] for run in runs], "curves": curves}


def sweep(directory: Path, url: str | None, chunks: int = 10**6) -> Any:
    """Begin or resume a sweep; return its trials and its best agents."""
    import sweep_runs
    from toy_algorithm import InterruptAfter, toy

    from jaxrl.training.policy import load_policy
    from jaxrl.tuning import HyperTrick
    from jaxrl.tuning.sweeps import loop

    with mock.patch.object(loop, "Interrupt", return_value=InterruptAfter(chunks)):
        result = sweep_runs.run(
            directory, HyperTrick(6, 3), num_lanes=2, storage=url, study_name="study", resume=True,
            worker="one", checkpoint_seconds=0.0, keep_best=2,
        )  # fmt: skip
    best = {
        path.name: digest(load_policy(path, make_algorithm=lambda env, network: toy(env)).state)
        for path in sorted((directory / BEST).glob("trial-*"))
    }
    return {"trials": result.summary["trials"], BEST: best}


def prepare(directory: Path) -> dict[str, Any]:
    """Write runs and sweeps, and return what their undisturbed readers give."""
    for name, updates, seed, rate in (
        ("run", HALF, SEED, 0.05), ("ended", WHOLE, SEED, 0.05),
        ("other-seed", HALF, OTHER_SEED, 0.05), ("other-config", HALF, SEED, 0.01),
    ):  # fmt: skip
        train(directory / name, updates, seed, rate, chunk=2)
    expected: dict[str, Any] = {}
    for name in ("run", "ended"):
        expected[f"act {name}"] = [act(directory / name), act(_older(directory, name))]
        expected[f"compare {name}"] = [compare(directory / name, directory / "other-seed")]
        copy = shutil.copytree(directory / name, directory / "copy")
        expected[f"train {name}"] = [train(copy, WHOLE, SEED, 0.05)]
        shutil.rmtree(copy)
    for kind in ("sqlite", "journal"):
        whole = sweep(directory / f"{kind}-ended", url_of(directory / f"{kind}-ended", kind))
        half = directory / f"{kind}-half"
        sweep(half, url_of(half, kind), chunks=4)
        expected[f"sweep {kind}"] = [whole]
    return expected


def _older(directory: Path, name: str) -> Path:
    """Return a copy of a run that lacks its newest checkpoint."""
    copy = shutil.copytree(directory / name, directory / f"{name}-older")
    shutil.rmtree(checkpoints_of(copy)[-1])
    return copy


# --- damage --------------------------------------------------------------------------------------


def url_of(directory: Path, kind: str) -> str:
    """Return the URL of a sweep's study, which lies in its directory."""
    return f"{kind}:///{directory}/study.{'db' if kind == 'sqlite' else 'log'}"


def checkpoints_of(directory: Path) -> list[Path]:
    """Return the checkpoints of a run or sweep, the newest last."""
    found = [path for path in (directory / CHECKPOINTS).iterdir() if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def damage(rng: random.Random, path: Path) -> str:
    """Damage a file or a directory; return how."""
    if path.is_dir():
        shutil.rmtree(path)
        return f"deleted the directory {path}"
    before = path.read_bytes()
    way = rng.choice(("flip", "flip", "truncate", "zero", "append", "delete"))
    after = bytearray(before)
    position = rng.randrange(len(before) or 1)
    match way:
        case "flip" if before:
            after[position] ^= 1 << rng.randrange(8)
        case "truncate":
            del after[position:]
        case "zero":
            end = min(len(after), position + rng.choice((1, 16, 4096, 10**9)))
            after[position:end] = bytes(end - position)
        case "append":
            after += rng.choice((rng.randbytes(rng.randrange(1, 100)), before, b"\0", b"\n{}\n"))
    path.write_bytes(after)
    if way == "delete":
        path.unlink()
    return f"{way} at byte {position} of {len(before)} of {path}"


def swap(directory: Path, path: Path, other: Path) -> str:
    """Replace a file or folder of a run by that of another run; return which."""
    path = path.relative_to(directory)
    if (directory / path).is_dir():
        shutil.rmtree(directory / path)
        shutil.copytree(other / path, directory / path)
    else:
        shutil.copyfile(other / path, directory / path)
    return f"{directory / path} from {other.name}"


# --- cases ---------------------------------------------------------------------------------------


@functools.cache
def prepared() -> tuple[Path, dict[str, Any]]:
    """Return the directory of what is prepared, and what its undisturbed readers give."""
    directory = Path(tempfile.mkdtemp(dir=scratch_directory()))
    return directory, WARM.value_of(prepare, directory)


def judge(ended: Ended, expected: list[Any], what: str, directory: Path, is_spare: bool) -> Outcome:
    """Return what came of reading damaged files.

    Args:
      expected: what may be read.
      what: the damage.
      is_spare: the work can go on without what was damaged, so it must.
    """
    if ended.status == 0:
        if ended.value in expected:
            return SURVIVED
        found, whole = ended.value, expected[0]
        parts = [name for name in whole if found[name] != whole[name]]
        is_told = f"{directory / METRICS}.jsonl: " in ended.output
        if is_told and {*parts} <= {"rows", "returns", "curves"}:
            return Outcome(Verdict.SURVIVED, "a warning names the damaged file")
        detail = f"{what}: other {parts}: " + "; ".join(_differences(found, whole, parts))
        if parts == ["rows"] and all(row in whole["rows"] for row in found["rows"]):
            return Outcome(Verdict.LOST, detail)
        return Outcome(Verdict.SILENTLY_WRONG, detail)
    if not ended.names(str(directory)):
        return Outcome(Verdict.UNNAMED_ERROR, f"{what}: {ended.tail()}")
    if is_spare:
        return Outcome(Verdict.LOST, f"{what}, which is not needed: {ended.text[:500]}")
    return Outcome(Verdict.SURVIVED, ended.text[:200])


def is_one_agent_lost(ended: Ended, whole: dict[str, Any], agent: Path) -> bool:
    """Return whether a warning names a best agent, and all other results are as undisturbed.

    Another agent may have its place.
    """
    if ended.status != 0 or f"the agent in {agent} is lost: " not in ended.output:
        return False
    others = {name: sha for name, sha in whole[BEST].items() if name != agent.name}
    same = {name: sha for name, sha in ended.value[BEST].items() if name in others}
    return ended.value["trials"] == whole["trials"] and same == others


def _differences(found: Any, whole: Any, parts: list[str]) -> list[str]:
    return [f"{json.dumps(found[p])[:300]} instead of {json.dumps(whole[p])[:300]}" for p in parts]


def read_damaged(rng: random.Random, directory: Path, part: str, swaps: bool = False) -> Outcome:
    """Damage a part of a run, and resume it, load its policy or compare it with another run."""
    origin, expected = prepared()
    name = "run" if swaps else rng.choice(("run", "ended"))
    run_dir = shutil.copytree(origin / name, directory / name)
    damaged, paths = choose(rng, run_dir, part)
    other = origin / rng.choice(("other-seed", "other-config"))
    if swaps:
        paths = [path for path in paths if (other / path.relative_to(run_dir)).exists()]
    path = rng.choice(paths)
    # What is another run's as a whole is intact, and is refused; its user must decide.
    is_foreign = swaps and (part == METRICS or path in checkpoints_of(run_dir))
    what = swap(run_dir, path, other) if swaps else damage(rng, path)
    reader = rng.choice(("train", "act") if part == CHECKPOINTS else ("train", "act", "compare"))
    match reader:
        case "train":
            ended = WARM.call(train, run_dir, WHOLE, SEED, 0.05)
        case "act":
            ended = WARM.call(act, run_dir)
        case _:
            ended = WARM.call(compare, run_dir, origin / "other-seed")
    allowed = expected[f"{reader} {name}"]
    if damaged != NEWEST:
        allowed = allowed[:1]
    is_spare = not is_foreign and (part == CHECKPOINTS or (part == METRICS and reader == "train"))
    return judge(ended, allowed, f"{reader}: {what}", run_dir, is_spare)


def resume_damaged_sweep(rng: random.Random, directory: Path, part: str) -> Outcome:
    """Damage a part of a sweep and resume it."""
    origin, expected = prepared()
    kind = rng.choice(("sqlite", "journal"))
    sweep_dir = shutil.copytree(origin / f"{kind}-{rng.choice(('half', 'ended'))}", directory / "s")
    path = rng.choice(choose(rng, sweep_dir, part)[1])
    what = damage(rng, path)
    ended = WARM.call(sweep, sweep_dir, url_of(sweep_dir, kind))
    of_agent = path.relative_to(sweep_dir).parts
    if of_agent[0] == BEST:
        agent = sweep_dir / BEST / of_agent[1]
        if is_one_agent_lost(ended, expected[f"sweep {kind}"][0], agent):
            return Outcome(Verdict.SURVIVED, "a warning names the lost agent")
    return judge(ended, expected[f"sweep {kind}"], what, sweep_dir, is_spare=part == CHECKPOINTS)


def choose(rng: random.Random, directory: Path, part: str) -> tuple[str, list[Path]]:
    """Return which of two checkpoints to damage, and the files and folders of a part.

    Args:
      part: `CHECKPOINTS`, `METRICS`, `STUDY`, or "files" for all others.
    """
    if part == CHECKPOINTS:
        which = rng.choice((NEWEST, NEWEST, "older"))
        checkpoint = checkpoints_of(directory)[-1 if which == NEWEST else -2]
        return which, [checkpoint, *sorted(checkpoint.rglob("*"))]
    files = {part: sorted(directory.glob(f"{part}.*")) for part in (METRICS, STUDY)}
    if part in files:
        return part, files[part]
    others = (path for path in sorted(directory.rglob("*")) if path.is_file())
    left_out = [directory / CHECKPOINTS, *files[METRICS], *files[STUDY]]
    return part, [p for p in others if not {p, *p.parents} & {*left_out}]


def _kind(name: str, run: Any, **arguments: Any) -> Kind:
    return Kind(name, functools.partial(run, **arguments), per_round=25)


KINDS = (
    _kind("damage-checkpoint", read_damaged, part=CHECKPOINTS),
    _kind("damage-run-file", read_damaged, part="files"),
    _kind("damage-metrics", read_damaged, part=METRICS),
    _kind("swap-checkpoint", read_damaged, part=CHECKPOINTS, swaps=True),
    _kind("swap-run-file", read_damaged, part="files", swaps=True),
    _kind("swap-metrics", read_damaged, part=METRICS, swaps=True),
    _kind("damage-sweep-checkpoint", resume_damaged_sweep, part=CHECKPOINTS),
    _kind("damage-sweep-file", resume_damaged_sweep, part="files"),
    _kind("damage-study", resume_damaged_sweep, part=STUDY),
)
