"""The flags of `jaxrl train`: parsing with a preset's values as defaults, and their checks."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro

from jaxrl import checks
from jaxrl.cli.flags.arguments import LargeInteger, flags_of, naming_flags, parse_env_options
from jaxrl.cli.flags.config_file import parse_with_file
from jaxrl.envs.host_adapter import POOL_OPTIONS
from jaxrl.presets import ATARI_OPTIONS, DEFAULT_PRESET, PRESETS, Preset


@dataclasses.dataclass(kw_only=True)
class TrainArguments:
    """The flags that every preset has."""

    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """YAML file of flags and their values, or the manifest.json of a run; other flags change
    them."""
    env_id: str
    """Id of the environment; a prefix such as envpool/ or gymnax/ forces the backend."""
    total_steps: LargeInteger
    """Steps of all environments together, with those that only reset an episode."""
    num_envs: int
    """Environments stepped together."""
    env_options: tuple[str, ...] = ()
    """name=value for the backend, as for jaxrl.make."""
    devices: int = 1
    """Devices that train the agent together, each with a part of the environments; without
    accelerators, cores of the CPU. With several processes, the devices of each: all that it
    sees."""
    cluster: bool = False
    """Train on all processes that Slurm, Open MPI or Kubernetes started with this command."""
    coordinator: str | None = None
    """address:port of the first process, for processes that are started by hand."""
    num_hosts: int | None = None
    """The number of processes started by hand."""
    host_id: int | None = None
    """The number of this process, from 0."""
    seed: int = 1
    """Seed of all randomness: network, environments, actions, minibatches and evaluations."""
    run_dir: Path | None = None
    """Directory of all output; runs/<algorithm>-<env>-seed<seed> by default. It holds one run."""
    label: str | None = None
    """Name of the run on pages that compare runs."""
    init_from: Path | None = None
    """Directory of a run whose trained agent this run begins with; its optimizer is new."""
    resume: bool = False
    """Continue the run in run_dir; begin one if there is none."""
    video: bool = False
    """Record one evaluation episode at the end, into run_dir/video/."""
    anneal: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    num_evaluations: int = 1
    """Evaluations on separate environments, evenly spaced, the last one at the end."""
    eval_episodes: int = 16
    """Episodes of each evaluation."""
    eval_greedy: bool = False
    """Evaluate the most probable actions, instead of samples."""
    log_every: int | None = None
    """Updates a row of metrics.jsonl; about 1000 rows by default."""
    wandb: bool = False
    """Send the rows and the settings to Weights & Biases, into the project of the environment
    variable WANDB_PROJECT or jaxrl; needs pip install wandb."""
    autotune: bool = False
    """Choose by short trials the settings that are fastest on this machine: threads and pools of
    simulators, or for environments in JAX the devices, on which depends what a minibatch holds."""
    autotune_also: tuple[Literal["num_envs", "num_minibatches"], ...] = ()
    """With --autotune, choose these too, on which learning depends."""


@dataclasses.dataclass(kw_only=True)
class AtariArguments(TrainArguments):
    """The flags of presets for envpool's Atari."""

    episodic_life: bool = ATARI_OPTIONS["episodic_life"]
    """Show the learner a lost life as an end."""
    reward_clip: bool = ATARI_OPTIONS["reward_clip"]
    """Show the learner the sign of rewards only."""
    repeat_action_probability: float = ATARI_OPTIONS["repeat_action_probability"]
    """Sticky actions (Machado et al. 2018)."""
    num_threads: int = 0
    """Threads of the simulators; 0 for one a core."""
    num_pools: int = 1
    """Split the environments over this many pools: while the policy acts in one, the others
    simulate. Each has num_threads threads of its own."""
    asynchronous: bool = False
    """Continue with the pool that is ready first, instead of taking turns."""
    send_ahead: bool = False
    """Send each rollout's last actions before the agent learns, so that they are simulated
    meanwhile; the policy that chose them lags by an update."""


def parse_command(
    argv: Sequence[str], prog: str | None = None, presets: Sequence[str] = ()
) -> tuple[str, Any]:
    """Return the algorithm that a command names first, and its arguments.

    Args:
      argv: the algorithm, then flags.
      presets: names to choose from, the default first; all of the algorithm's if empty.

    Raises:
      ValueError: for bad values; tyro exits if a flag is unknown.
    """
    if not argv or argv[0] not in PRESETS:
        raise ValueError(
            f"jaxrl train takes an algorithm first, one of {', '.join(PRESETS)}, got "
            f"{argv[0] if argv else 'nothing'!r}; --list shows the presets"
        )
    algorithm = argv[0]
    prog = None if prog is None else f"{prog} {algorithm}"
    return algorithm, parse(algorithm, argv[1:], prog, presets)


def parse(
    algorithm: str, argv: Sequence[str], prog: str | None = None, presets: Sequence[str] = ()
) -> Any:
    """Return the arguments whose defaults are those of the preset that `--preset` names.

    Raises:
      ValueError: for bad values; tyro exits if a flag is unknown.
    """
    known = PRESETS[algorithm]
    names = tuple(presets or sorted(known, key=lambda name: name != DEFAULT_PRESET))

    def parse_flags(argv: Sequence[str]) -> Any:
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--preset", default=names[0], nargs="?")
        name = finder.parse_known_args(argv)[0].preset
        # The parser below refuses an unknown preset.
        default = make_arguments(name if name in names else names[0], names, known)
        args = tyro.cli(type(default), default=default, args=argv, prog=prog)
        config_class, values = type(known[args.preset].config), vars(args.config)
        if values["anneal_updates"] and not args.anneal:
            raise ValueError(
                "--no-anneal keeps the learning rate constant, of itself or as part of the preset, "
                f"but --anneal-updates {values['anneal_updates']} lets it fall; leave that out, or "
                "give --anneal"
            )
        with naming_flags(flags_of(config_class)):
            if args.anneal and not values["anneal_updates"]:  # `prepare` knows their number
                config = _without_annealing(config_class(**values | {"anneal_updates": 1}))
            else:
                config = config_class(**values)
        return dataclasses.replace(args, config=config)

    return parse_with_file(argv, parse_flags, read_env_options, algorithm)


def _without_annealing(config: Any) -> Any:
    """Return a config with 0 `anneal_updates`, which is not checked against other fields."""
    annealed = jax.tree_util.GetAttrKey("anneal_updates")
    return jax.tree.map_with_path(lambda path, x: 0 if path == (annealed,) else x, config)


def make_arguments(name: str, names: Sequence[str], presets: dict[str, Preset]) -> Any:
    """Return a preset as arguments: `TrainArguments` or `AtariArguments`, `preset` and `config`."""
    preset = presets[name]
    base = TrainArguments if preset.atari_flags is None else AtariArguments
    choices, config_class = tyro.extras.literal_type_from_choices(names), type(preset.config)
    # `parse` checks the values: tyro would tell of a field, not of a flag.
    unchecked = type(config_class.__name__, (config_class,), {"__post_init__": lambda self: None})
    help = tyro.conf.arg(help="Settings to start from; other flags change them.")
    fields: list[Any] = [
        ("preset", Annotated[choices, help]),
        ("config", Annotated[unchecked, tyro.conf.OmitArgPrefixes]),
    ]
    arguments = dataclasses.make_dataclass("Arguments", fields, bases=(base,), kw_only=True)
    arguments.__doc__ = f"{name}: {preset.description}."
    options = tuple(f"{option}={value!r}" for option, value in preset.env_options.items())
    values = preset._asdict() | {
        "config": unchecked(**vars(preset.config)), "env_options": options
    }  # fmt: skip
    del values["description"]
    return arguments(preset=name, **values.pop("atari_flags") or {}, **values)


def joins_processes(args: TrainArguments) -> bool:
    """Return whether several processes train the agent."""
    return args.cluster or args.coordinator is not None


def check_flags(args: TrainArguments) -> None:
    """Raise `ValueError` if flags contradict each other."""
    if not joins_processes(args) and (args.num_hosts, args.host_id) != (None, None):
        raise ValueError("--num-hosts and --host-id need --coordinator address:port")
    checks.integer("--devices", args.devices)
    if args.autotune_also and not args.autotune:
        raise ValueError("--autotune-also needs --autotune")
    if args.autotune and (joins_processes(args) or args.devices > 1):
        raise ValueError(
            "--autotune chooses the devices of one process; leave out --devices, --cluster and "
            "--coordinator, or --autotune"
        )


def read_env_options(args: TrainArguments) -> dict[str, Any]:
    """Return the backend's options: those of `AtariArguments`, and `--env-options` over them."""
    options: dict[str, Any] = {}
    if isinstance(args, AtariArguments):
        names = [*ATARI_OPTIONS, "num_threads"]
        names += [n for n in POOL_OPTIONS if getattr(args, n) != getattr(AtariArguments, n)]
        options = {name: getattr(args, name) for name in names}
    return options | parse_env_options(args.env_options)
