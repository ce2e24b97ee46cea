"""Hyperparameter optimizers for PPO and DQN on equal budgets, after ARLBench (arXiv 2409.18827).

    python experiments/hpo_benchmark.py                  # all optimizers but SMAC, cheap tasks
    python experiments/hpo_benchmark.py --tasks dqn-CartPole-v1 --optimizers pbt tpe
    python experiments/hpo_report.py                     # the table, the record and the picture

Each optimizer searches each task several times, with other seeds. All searches of a task take the
same number of environment steps, with the finals that choose their winners. The winners then train
on seeds that no search used. docs/explanation/hpo-benchmark.md describes the protocol.

A cell is one optimizer on one task. Its JSON is written to --cells once it is done, and the next
start of the command skips it. Processes that share --cells need different --tasks or --optimizers.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import jaxrl
from jaxrl import checks, tuning
from jaxrl import config as fields
from jaxrl.analysis.records import keep_record
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.tuning.finals import mean_of_last_two, retrain
from jaxrl.tuning.samplers.ask_tell import AskTell
from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.samplers.smac_search import import_smac
from jaxrl.tuning.schedulers.contract import Ledger, Scheduler
from jaxrl.tuning.schedulers.wrapper import Wrapper
from jaxrl.tuning.timeline import expected_phases


class Agent(NamedTuple):
    """An algorithm, the fields that are searched, and a config that gives the others."""

    algorithm: Callable[..., jaxrl.Algorithm]
    space: tuning.Space
    config: Any


PPO = Agent(
    jaxrl.ppo,
    {
        "learning_rate": tuning.LogUniform(1e-6, 0.1),
        "entropy_coef": tuning.Uniform(0.0, 0.5),
        "gae_lambda": tuning.Uniform(0.8, 0.9999),
        "clip_epsilon": tuning.Uniform(1e-6, 0.5),  # from 0 in ARLBench, which PPOConfig refuses
        "value_coef": tuning.Uniform(0.0, 1.0),
        "max_grad_norm": tuning.Uniform(1e-6, 1.0),  # the same
    },
    jaxrl.PPOConfig(
        num_steps=128, num_epochs=10, num_minibatches=16, gamma=0.99, activation="tanh",
        hidden_sizes=(64, 64),
    ),
)  # fmt: skip
"""The fields of ARLBench's space (examples/configs/search_space/ppo_cc.yaml) that jaxrl traces,
and its settings (examples/configs/algorithm/ppo.yaml): minibatches of 64 transitions from 8
environments."""
MINATAR = PPO._replace(
    config=jaxrl.PPOConfig(num_steps=128, num_epochs=2, num_minibatches=128, torso="minatar_cnn")
)
DOOR_KEY = PPO._replace(config=PPO.config.replace(torso="mlp"))  # no CNN, as in ARLBench
DQN = Agent(
    jaxrl.dqn,
    {
        "learning_rate": tuning.LogUniform(1e-6, 0.1),
        "initial_epsilon": tuning.Uniform(0.5, 1.0),
        "final_epsilon": tuning.Uniform(0.001, 0.2),
        "learning_starts": tuning.Uniform(0.0, 2048.0),
        "target_period": tuning.Uniform(1 / 32, 100 / 32),  # 1 to 100 steps; an update takes 32
    },
    jaxrl.DQNConfig(
        exploration_steps=10_000, gamma=0.99, max_grad_norm=math.inf, num_steps=4,
        num_gradient_steps=1, batch_size=128, replay_size=120_000, n_step=1, double=False,
        huber=False, activation="tanh", hidden_sizes=(64, 64), layer_norm=False,
    ),
)  # fmt: skip
"""The same of dqn_cc.yaml and dqn.yaml: a gradient step on 128 transitions after every 4 steps of 8
environments."""


class Task(NamedTuple):
    """The training of an agent on an environment."""

    env_id: str
    total_steps: int
    lowest: float
    """The return that counts for an agent that diverged."""
    num_envs: int = 8
    agent: Agent = PPO


TASKS = {
    "CartPole-v1": Task("CartPole-v1", 100_000, 0.0),
    "Acrobot-v1": Task("Acrobot-v1", 100_000, -500.0),
    "MountainCarContinuous-v0": Task("MountainCarContinuous-v0", 100_000, -100.0),
    "Pendulum-v1": Task("Pendulum-v1", 100_000, -3260.0),
    "Breakout-MinAtar": Task("Breakout-MinAtar", 2_000_000, 0.0, 64, MINATAR),
    "Asterix-MinAtar": Task("Asterix-MinAtar", 2_000_000, 0.0, 64, MINATAR),
    "LunarLander-v2": Task("envpool/LunarLander-v2", 1_000_000, -1000.0),
    "DoorKey-5x5": Task("envpool/MiniGrid-DoorKey-5x5-v0", 100_000, 0.0, agent=DOOR_KEY),
    "dqn-CartPole-v1": Task("CartPole-v1", 100_000, 0.0, agent=DQN),
    "dqn-Acrobot-v1": Task("Acrobot-v1", 100_000, -500.0, agent=DQN),
}
CHEAP = ("CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1")


class Sampler(NamedTuple):
    """A sampler on the host, one of `AskTell`; its trials train for all phases."""

    name: str


class ProgramSampler(NamedTuple):
    """A sampler within the program, of `tuning`; its trials train for all phases."""

    sampler: tuning.AdaptiveSampler


class Budget(NamedTuple):
    """Phases that all schedulers can spend exactly: what HyperBand costs, several times."""

    num_phases: int
    """Phases of a trial that is not stopped."""
    times: int
    """HyperBands."""
    halving_trials: int
    """Trials of the successive halving that costs what one of them costs."""
    total: int
    """Phases of all of them, as many as of some whole trials."""

    @property
    def whole_trials(self) -> int:
        """Trials that are not stopped and cost the budget."""
        return self.total // self.num_phases


def hyperband_budget(num_phases: int, times: int) -> Budget:
    """Return the budget of some HyperBands with eta 3, on which all schedulers can be compared.

    Raises:
      ValueError: if no successive halving, or no number of whole trials, costs the same.
    """
    times = checks.integer("times", times)
    cost = int(expected_phases(tuning.HyperBand(num_phases)))
    halvings = [tuning.SuccessiveHalving(number, num_phases) for number in range(1, cost + 1)]
    equal = [one.num_trials for one in halvings if expected_phases(one) == cost]
    if not equal or cost * times % num_phases:
        raise ValueError(
            f"no successive halving, or no number of whole trials, costs the {cost * times} phases "
            f"of {times} HyperBands of {num_phases} phases; use 3 or 9 phases, and a multiple of 3 "
            "times"
        )
    return Budget(num_phases, times, equal[-1], cost * times)


@dataclass(frozen=True)
class Extended(Wrapper):
    """A HyperTrick search that begins more trials than its rule counts with.

    How many phases the rule spends depends on the scores. With trials in reserve and a cap, a
    search spends exactly what it may.
    """

    search: tuning.HyperTrick
    total: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "total", least=self.search.num_trials)

    @property
    def num_trials(self) -> int:
        """The trials with those in reserve."""
        return self.total

    def judge(self, ledger: Ledger, trial: jaxrl.types.Array) -> jaxrl.types.Array:
        """Judge all trials by the same rule."""
        return self.search.judge(ledger, trial)


def hypertrick(budget: Budget) -> Scheduler:
    """Return HyperTrick, with the trials that cost the budget if scores are exchangeable."""
    planned = budget.total / expected_phases(tuning.HyperTrick(1, budget.num_phases))
    return Extended(tuning.HyperTrick(round(planned), budget.num_phases), budget.total)


OPTIMIZERS: dict[str, Sampler | ProgramSampler | Callable[[Budget], Scheduler]] = {
    "random": lambda b: tuning.RandomSearch(b.whole_trials, b.num_phases),
    "sobol": Sampler("sobol"),
    "tpe": Sampler("tpe"),
    "smac": Sampler("smac"),
    "improvement": ProgramSampler(tuning.ExpectedImprovement()),
    "halving": lambda b: tuning.SuccessiveHalving(
        b.times * b.halving_trials, b.num_phases, times=b.times
    ),
    "hyperband": lambda b: tuning.HyperBand(b.num_phases, times=b.times),
    "asha": lambda b: tuning.ASHA(b.total, b.num_phases),  # it ends when the budget is spent
    "hypertrick": hypertrick,
    "pbt": lambda b: tuning.PBT(b.whole_trials, b.num_phases),
    "pb2": lambda b: tuning.PB2(b.whole_trials, b.num_phases),
}


@dataclasses.dataclass(frozen=True)
class Args:
    """Hyperparameter optimizers for PPO and DQN on equal budgets."""

    tasks: tuple[str, ...] = CHEAP
    optimizers: tuple[str, ...] = tuple(name for name in OPTIMIZERS if name != "smac")
    """All but "smac" by default, which needs a package: pip install smac"""
    seeds: int = 10
    """Searches of each optimizer on each task."""
    new_seeds: int = 10
    """Agents that tell how good a winner is."""
    phases: int = 9
    """Phases of a run that is not stopped; 3 or 9."""
    times: int = 3
    """HyperBands that cost as much as a search without its finals."""
    finals_top: int = 3
    """Settings of a search that train again."""
    finals_repeats: int = 3
    """New runs of each of them."""
    batch: int = 4
    """Trials that samplers propose at a time."""
    total_steps: int | None = None
    """Environment steps of a run, about; the task's by default."""
    at_once: int = 10
    """Agents that train side by side, about: few on a CPU, with convolutions 1, on a GPU all."""
    cells: Path = Path("runs") / "hpo-benchmark"
    """Directory of the finished cells, and of log.txt."""


class Problem:
    """A task as all optimizers get it: programs that train on it, and the time that they take."""

    def __init__(self, name: str, args: Args):
        self.name, self.args, self.task = name, args, TASKS[name]
        algorithm, self.space, self.config = self.task.agent
        self.budget = hyperband_budget(args.phases, args.times)
        self.algo = algorithm(jaxrl.make(self.task.env_id, self.task.num_envs))
        steps = self.algo.env.num_envs * self.algo.num_steps(self.config)
        total_steps = args.total_steps or self.task.total_steps
        self.updates = max(round(total_steps / (args.phases * steps)), 1)
        self.phase_steps = self.updates * steps
        self.keys = jax.vmap(jax.random.key)(np.arange(args.seeds))
        names = ("seeds", "new_seeds", "phases", "times", "finals_top", "finals_repeats", "batch")
        self.settings = {
            **{name: getattr(args, name) for name in names},
            "lowest": self.task.lowest,
            "config": fields.to_dict(self.config),
            "search_phases": self.budget.total,
            "phase_steps": self.phase_steps,
            "space": {name: str(part) for name, part in self.space.items()},
        }
        self.training: dict[int, Callable[..., Any]] = {}
        self.seconds: dict[str, float] = defaultdict(float)

    def compile(
        self, function: Callable[..., Any], at_once: int, *arguments: Any
    ) -> Callable[..., Any]:
        """Return the compiled program that maps a function over rows, some of them at once."""
        number = min(at_once, len(jax.tree.leaves(arguments)[0]))

        def mapped(*rows: Any) -> Any:
            batch_size = number if number > 1 else None
            return jax.lax.map(lambda row: function(*row), rows, batch_size=batch_size)

        options = jaxrl.compiler_options(self.algo, self.config)
        lower = jax.jit(mapped).lower
        return self.timed("compilation", lambda: lower(*arguments).compile(options))

    def train(self, part: str, schedules: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Return the scores `[S, K, P]` of new agents that train with schedules, `[S, K, P]` each.

        The agents of search s have the keys of its trials `first`, `first + 1`, ...
        """
        shape = schedules["learning_rate"].shape
        flat = {name: x.reshape(-1, shape[2]).astype(np.float32) for name, x in schedules.items()}
        trials = first + jnp.arange(shape[1])
        of_search = jax.vmap(tuning.trial_key, (None, 0))
        keys = jax.vmap(of_search, (0, None))(self.keys, trials).reshape(-1)
        if len(keys) not in self.training:
            one = functools.partial(retrain, self.algo, self.config, self.updates)
            self.training[len(keys)] = self.compile(one, self.args.at_once, flat, keys)
        program = self.training[len(keys)]
        return self.timed(part, lambda: np.asarray(program(flat, keys))).reshape(shape)

    def timed(self, part: str, function: Callable[[], Any]) -> Any:
        """Return a function's result; its time counts as that of `part`."""
        began = time.perf_counter()
        result = function()
        self.seconds[part] += time.perf_counter() - began
        return result


class Searches(NamedTuple):
    """The outcomes of S searches of N trials and P phases, `[S, N, P]` each."""

    scores: Any  # NaN where there is none
    late_scores: Any  # `[S, N]`: those by which finalists are chosen
    round: Any  # in which phases ran, -1 where none did
    schedules: dict[str, Any]


def search_in_program(
    problem: Problem, scheduler: Scheduler, sampler: tuning.AdaptiveSampler | None = None
) -> Searches:
    """Search with all seeds in one program."""
    is_explorer, budget = isinstance(scheduler, tuning.Explorer), problem.budget
    is_on_host, at_once = not problem.algo.env.checkpointable, problem.args.at_once
    if is_explorer:
        num_lanes = scheduler.num_trials
    elif sampler is not None:
        num_lanes = problem.args.batch
    else:  # so many are full in every round until the steps are spent, and exactly these
        num_lanes = budget.num_phases
    run = functools.partial(
        tuning.search, problem.algo, problem.config, problem.space, scheduler, num_lanes,
        problem.updates, strategy="map" if at_once == 1 and not is_on_host else "vmap",
        sampler=sampler, max_steps=None if is_explorer else budget.total * problem.phase_steps,
    )  # fmt: skip

    def outcome(key: jax.Array) -> Searches:
        result = run(key)
        return Searches(result.ledger.scores, result.late_scores, result.round, result.schedule)

    # Searches end after different numbers of rounds. JAX refuses to step simulators on the host in
    # a loop that some searches have left, so there one search follows another.
    searches = 1 if is_on_host else at_once // num_lanes
    program = problem.compile(outcome, searches, problem.keys)
    return problem.timed("search", lambda: jax.device_get(program(problem.keys)))


def search_from_host(problem: Problem, sampler: str) -> Searches:
    """Search with a sampler on the host; the next trials of all seeds train side by side."""
    runs, batch, phases = problem.budget.whole_trials, problem.args.batch, problem.args.phases
    searches = AskTell(problem.space, sampler, range(problem.args.seeds), runs, batch)
    scores, schedules = [], []
    for first in range(0, runs, batch):
        number = min(batch, runs - first)
        asked = problem.timed("search", lambda number=number: searches.ask(number))
        # The last batch may be smaller. It is filled up, since another size is another program.
        filled = {field: x[:, np.arange(batch) % number] for field, x in asked.items()}
        schedules.append({f: np.repeat(x[..., None], phases, 2) for f, x in filled.items()})
        scores.append(problem.train("search", schedules[-1], first))
        told = at_least(problem.task, mean_of_last_two(scores[-1]))[:, :number]
        problem.timed("search", lambda told=told: searches.tell(told))

    def join(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts, 1)[:, :runs]

    joined = join(scores)
    order = np.arange(runs)[:, None] // batch * phases + np.arange(phases)
    return Searches(
        joined,
        mean_of_last_two(joined),
        np.tile(order, (problem.args.seeds, 1, 1)),
        {field: join([part[field] for part in schedules]) for field in problem.space},
    )


def run_cell(problem: Problem, name: str) -> dict[str, Any]:
    """Return what the searches of an optimizer found, and how good it is on new seeds."""
    args, task, optimizer = problem.args, problem.task, OPTIMIZERS[name]
    log(args, f"{problem.name} {name} begins")
    problem.seconds.clear()
    manifest = manifests.describe(problem.algo, problem.config, {"seeds": args.seeds})
    began = time.process_time()
    if isinstance(optimizer, Sampler):
        found = search_from_host(problem, optimizer.name)
    elif isinstance(optimizer, ProgramSampler):
        whole_trials = tuning.RandomSearch(problem.budget.whole_trials, args.phases)
        found = search_in_program(problem, whole_trials, optimizer.sampler)
    else:
        found = search_in_program(problem, optimizer(problem.budget))

    def schedules_of(trials: np.ndarray) -> dict[str, np.ndarray]:
        return {field: np.take_along_axis(x, trials[:, :, None], 1)
                for field, x in found.schedules.items()}  # fmt: skip

    best = np.argsort(-np.asarray(found.late_scores), 1, kind="stable")[:, : args.finals_top]
    finalists = np.repeat(best, args.finals_repeats, 1)
    runs = mean_of_last_two(problem.train("finals", schedules_of(finalists), 1_000_000))
    by_setting = np.asarray(runs).reshape(*best.shape, -1).mean(2)
    winner = np.take_along_axis(best, by_setting.argmax(1)[:, None], 1)
    winners = schedules_of(winner)
    again = {field: np.repeat(x, args.new_seeds, 1) for field, x in winners.items()}
    returns = problem.train("evaluation", again, 2_000_000)[:, :, -1]
    phases = (found.round >= 0).sum((1, 2)) + finalists.shape[1] * args.phases
    return {
        "manifest": manifest,
        "steps": (phases * problem.phase_steps).tolist(),
        "trials": (found.round >= 0).any(2).sum(1).tolist(),
        "seconds": {part: round(x, 1) for part, x in problem.seconds.items()},
        "cpu_seconds": round(time.process_time() - began, 1),
        "winners": {field: x[:, 0].tolist() for field, x in winners.items()},
        "in_finals": at_least(task, by_setting.max(1)).tolist(),
        "on_new_seeds": at_least(task, returns).tolist(),
        "best_so_far": [
            best_so_far(task, scores, order)
            for scores, order in zip(found.scores, found.round, strict=True)
        ],
    }


def at_least(task: Task, scores: Any) -> np.ndarray:
    """Return scores with the task's lowest return in place of those that are not finite."""
    return np.where(np.isfinite(scores), scores, task.lowest)


def best_so_far(task: Task, scores: np.ndarray, order: np.ndarray) -> list[float]:
    """Return the highest score of a search after every P of its phases.

    Phases of a round count one after another.
    """
    phases = np.argsort(order, None, kind="stable")[(order < 0).sum() :]
    best = np.maximum.accumulate(at_least(task, scores).ravel()[phases])
    return best[scores.shape[1] - 1 :: scores.shape[1]].tolist()


def log(args: Args, text: str) -> None:
    """Print a line, and append it to the log."""
    line = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}"
    print(line, flush=True)
    args.cells.mkdir(parents=True, exist_ok=True)
    with (args.cells / "log.txt").open("a") as file:
        file.write(line + "\n")


def main(args: Args) -> None:
    """Run the cells that are not finished."""
    for flag, known in (("tasks", TASKS), ("optimizers", OPTIMIZERS)):
        if unknown := set(getattr(args, flag)) - set(known):
            raise ValueError(f"--{flag} takes {', '.join(known)}; got {', '.join(sorted(unknown))}")
    for name in ("seeds", "new_seeds", "finals_top", "finals_repeats", "batch", "at_once"):
        checks.integer(f"--{name.replace('_', '-')}", getattr(args, name))
    if any(isinstance(OPTIMIZERS[name], Sampler) for name in args.optimizers):
        import_optuna()  # or say at once that it is not installed
    if "smac" in args.optimizers:
        import_smac()
    for task in args.tasks:
        problem = Problem(task, args)
        for name in args.optimizers:
            settings = problem.settings | {"task": task, "optimizer": name}
            make = functools.partial(run_cell, problem, name)
            cell = keep_record(args.cells, f"{task}-{name}".lower(), settings, make)
            log(args, f"{task} {name} is finished, seconds: {cell['seconds']}")
            jax.clear_caches()  # no later cell needs what was traced for this one


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
