"""Training speed of PPO: how fast, where the time goes, and against what.

    python experiments/benchmarks/ppo_throughput.py
    python experiments/benchmarks/ppo_throughput.py --quick

For CartPole (4 environments x 128 steps), Breakout-MinAtar (64 x 128) and Pong (8 x 128, Nature
CNN): valid environment steps a second in the steady state, compile time, and the time of the
parts of an update, measured alone at the same sizes: environment stepping with random actions,
inference on stored observations, the learning epochs on a stored batch, and within these the
shuffling into minibatches. Parts and whole are separate programs, so shares need not add up to 1;
"unaccounted" is what is left, or negative. In the same run and in turn:

* rejax 0.1.3 on the first two, with equal sizes, networks and optimizer settings, without
  evaluation;
* the simulators alone: gymnax's own step in a scan, envpool stepped from Python;
* on Pong, what PyTorch's image rate for the learning epochs, inference and envpool's own time
  would allow together; and stepping through a host callback against envpool's XLA custom call.

Last, the time from the start of a process to the end of its first update on CartPole, with an
empty and with a filled compilation cache. A steady state is that of the program; machines drift,
so compare within one run only.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from gymnax.wrappers import LegacyStepAPIWrapper
from rich.console import Console
from rich.table import Table

import convolution
import jaxrl
from jaxrl import networks, optim, recurrence
from jaxrl.algos import ppo as ppo_module
from jaxrl.chunk import train_chunk
from jaxrl.minibatches import shuffled_indices
from timing import RESULTS, Samples, alternate, calls_for, machine, seconds_of, write_json

FIRST_UPDATE = Path(__file__).with_name("first_update.py")
COLD_SECONDS, WARM_SECONDS = 10.0, 3.0
ATARI = {"episodic_life": True, "reward_clip": True}
Measure = Callable[[], float]


@dataclass(frozen=True)
class Task:
    """What is trained, and the target of the ratio to the peer."""

    env_id: str
    num_envs: int
    config: jaxrl.PPOConfig
    peer: str
    target: float
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def steps(self) -> int:
        """Environment steps of one update."""
        return self.num_envs * self.config.num_steps

    def make(self) -> jaxrl.Env:
        return jaxrl.make(self.env_id, num_envs=self.num_envs, **dict(self.options))

    def sizes(self) -> str:
        c = self.config
        return (
            f"{self.num_envs} x {c.num_steps}, {c.num_epochs} epochs, "
            f"{c.num_minibatches} minibatches"
        )


# rejax clips the value loss, uses Adam's eps of 1e-8 and swish or tanh; both get the same.
SHARED = jaxrl.PPOConfig(
    learning_rate=2.5e-4,
    adam_eps=1e-8,
    clip_value=True,
    torso="mlp",
    hidden_sizes=(64, 64),
    activation="tanh",
)
TASKS = {
    "cartpole": Task("gymnax/CartPole-v1", 4, SHARED, "rejax", 1.5),
    "breakout": Task(
        "gymnax/Breakout-MinAtar", 64, SHARED.replace(num_minibatches=8), "rejax", 1.1
    ),
    "pong": Task(
        "envpool/Pong-v5",
        8,
        jaxrl.PPOConfig(clip_epsilon=0.1, clip_value=True, torso="nature_cnn"),
        "allowance",
        0.5,
        tuple(ATARI.items()),
    ),
}


@dataclass
class Args:
    """Training speed of PPO."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Any of cartpole, breakout, pong."""
    repeats: int = 7
    """Rounds in which all are measured in turn."""
    seconds: float = 0.7
    """Length of one measurement, roughly; at least one update."""
    first_update: bool = True
    """Also measure the time to the first update, in processes of their own."""
    quick: bool = False
    """Smoke test: small sizes, one round, no processes, one gymnax task. Meaningless numbers."""
    output: Path | None = RESULTS / "ppo_throughput.json"

    def __post_init__(self) -> None:
        unknown = set(self.tasks) - set(TASKS)
        if unknown:
            raise ValueError(f"unknown tasks {sorted(unknown)}; there are {list(TASKS)}")


def small(task: Task) -> Task:
    """The same task at the sizes of a smoke test."""
    config = task.config.replace(num_steps=8, num_epochs=1, num_minibatches=2)
    if config.torso == "nature_cnn":
        config = config.replace(torso="ga3c_cnn")
    return dataclasses.replace(task, num_envs=2, config=config)


# --- jaxrl ---------------------------------------------------------------------------------------


class Trainer:
    """jaxrl's own training program, compiled ahead of time."""

    def __init__(self, task: Task, seconds: float):
        self.config = task.config
        algo = jaxrl.ppo(task.make())
        self.state = jax.jit(algo.init)(self.config, jax.random.key(0))
        began = time.perf_counter()
        one = jnp.int32(1)
        self.program = train_chunk.lower(algo, self.config, self.state, one).compile(
            jaxrl.compiler_options(algo, self.config)
        )
        self.compile_seconds = time.perf_counter() - began
        self.num_parameters = networks.num_parameters(self.state.params)
        self.updates = calls_for(seconds, lambda: self.train(1))
        self.valid_rates: list[float] = []

    def train(self, updates: int) -> int:
        """Train; how many valid steps that took."""
        self.state, metrics = self.program(self.config, self.state, jnp.int32(updates))
        return int(np.asarray(metrics["valid_steps"])[:updates].sum())

    def __call__(self) -> float:
        """Seconds per update; the rate of valid steps is noted."""
        began = time.perf_counter()
        valid = self.train(self.updates)
        seconds = time.perf_counter() - began
        self.valid_rates.append(valid / seconds)
        return seconds / self.updates


class Part(NamedTuple):
    """A part of an update, as a program `function(data, carry, key) -> (carry, outputs)`.

    Data are an argument, as constants would be compiled otherwise; outputs are kept, as what
    nobody reads would not be computed.
    """

    function: Callable[[Any, Any, jax.Array], tuple[Any, Any]]
    data: Any
    carry: Any


@dataclass(frozen=True)
class Parts:
    """The parts of PPO's update, each a method."""

    task: Task
    env: jaxrl.Env

    def measures(self, seconds: float) -> dict[str, Measure]:
        """By name: seconds of that part in one update."""
        parts = {
            "env stepping": self.env_stepping(),
            "inference": self.inference(),
            "learning": self.learning(),
            "shuffling": self.shuffling(),
        }
        options = jaxrl.compiler_options(jaxrl.ppo(self.env), self.task.config)
        return {name: repeated(part, seconds, options) for name, part in parts.items()}

    def env_stepping(self) -> Part:
        """A rollout of random actions."""

        def function(actions: jax.Array, state: Any, key: jax.Array) -> tuple[Any, Any]:
            def step(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
                action, key = inputs
                return self.env.step(key, state, action)

            return jax.lax.scan(step, state, (actions, jax.random.split(key, len(actions))))

        state, _ = jax.jit(self.env.init)(jax.random.key(0))
        return Part(function, random_actions(self.task, self.num_actions), state)

    def inference(self) -> Part:
        """A forward pass and a sample for each step's stored observations."""
        network, params, batch = self.stored
        shape = (self.task.config.num_steps, self.env.num_envs)
        obs = batch.inputs.obs.reshape(*shape, *batch.inputs.obs.shape[2:])

        def function(data: Any, carry: None, key: jax.Array) -> tuple[None, Any]:
            params, obs = data

            def act(carry: None, inputs: tuple[jax.Array, jax.Array]) -> tuple[None, Any]:
                obs, noise = inputs
                distribution, value = network.apply(params, obs)
                action = distribution.from_noise(noise)
                return carry, (action, distribution.log_prob(action), value)

            distribution, _ = jax.eval_shape(network.apply, params, obs[0])
            noise = jax.vmap(distribution.noise)(jax.random.split(key, len(obs)))
            return jax.lax.scan(act, carry, (obs, noise))

        return Part(function, (params, obs), None)

    def learning(self) -> Part:
        """All epochs on a stored batch, shuffling included."""
        network, params, batch = self.stored
        config = self.task.config

        def objective(params: Any, minibatch: Any) -> Any:
            _, (distribution, value) = recurrence.unroll(network, params, (), minibatch.inputs)
            return ppo_module.loss(config, distribution, value, minibatch)

        def function(batch: Any, learner: Any, key: jax.Array) -> tuple[Any, Any]:
            params, opt_state, losses = ppo_module.learn(config, objective, learner, batch, key)
            return learner._replace(params=params, opt_state=opt_state), losses

        opt_state = optim.adam(config.adam_eps, config.max_grad_norm).init(params)
        learner = ppo_module.PPOState(params, opt_state, *(jnp.int32(0),) * 3, None, None)
        return Part(function, batch, learner)

    def shuffling(self) -> Part:
        """The permutations and gathers of all epochs, without learning."""
        *_, batch = self.stored
        config = self.task.config

        def function(batch: Any, carry: Any, key: jax.Array) -> tuple[Any, Any]:
            def minibatch(_: Any, rows: jax.Array) -> Any:
                return jax.tree.map(lambda x: x[:, rows], batch), None

            def epoch(carry: Any, key: jax.Array) -> Any:
                rows = shuffled_indices(key, config.num_minibatches, self.task.steps)
                return jax.lax.scan(minibatch, carry, rows)

            return jax.lax.scan(epoch, carry, jax.random.split(key, config.num_epochs))

        rows = self.task.steps // config.num_minibatches
        # A carried minibatch keeps every gather alive at no further work.
        return Part(function, batch, jax.tree.map(lambda x: x[:, :rows], batch))

    @property
    def num_actions(self) -> int:
        """Of a task with discrete actions, as all are here."""
        space = self.env.action_space
        assert isinstance(space, jaxrl.Discrete)
        return space.n

    @functools.cached_property
    def stored(self) -> tuple[Any, Any, Any]:
        """The network, its parameters, and made-up data of one rollout."""
        space = self.env.observation_space
        config, steps = self.task.config, self.task.steps
        network = networks.actor_critic(space, self.env.action_space, config)
        rng = np.random.default_rng(0)
        assert isinstance(space, jaxrl.Box)
        image = space.dtype == np.uint8
        obs = rng.integers(0, 256 if image else 2, (1, steps, *space.shape)).astype(space.dtype)
        number = np.linspace(-1, 1, steps, dtype=np.float32)[None]
        action = np.arange(steps, dtype=np.int32)[None] % self.num_actions
        ones = np.ones((1, steps), np.float32)
        columns = (
            jaxrl.Inputs(obs, *map(jnp.asarray, (ones > 1, action, number))),
            action,
            -ones,
            number,
            number,
            number,
            ones,
        )
        batch = ppo_module.Batch(*jax.tree.map(jnp.asarray, columns), core=())
        params = jax.jit(network.init)(jax.random.key(0), obs[0, :1])
        return network, params, batch


def random_actions(task: Task, num_actions: int) -> jax.Array:
    """The actions of one rollout, `[T, N]`."""
    shape = (task.config.num_steps, task.num_envs)
    return jax.random.randint(jax.random.key(1), shape, 0, num_actions, jnp.int32)


def repeated(part: Part, seconds: float, options: dict[str, Any] | None = None) -> Measure:
    """Seconds of one execution of a part, many of which run in one program."""
    _, shapes = jax.eval_shape(part.function, part.data, part.carry, jax.random.key(0))

    @functools.partial(jax.jit, donate_argnums=1, compiler_options=options)
    def program(data: Any, carry: Any, count: jax.Array) -> Any:
        def body(i: jax.Array, carry: Any) -> Any:
            return part.function(data, carry[0], jax.random.fold_in(jax.random.key(3), i))

        outputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (carry, outputs))

    # A copy, since what is donated may be shared with other parts.
    kept = [jax.tree.map(jnp.copy, part.carry)]

    def run(count: int) -> Any:
        kept[0], outputs = program(part.data, kept[0], jnp.int32(count))
        return kept[0], outputs

    calls = calls_for(seconds / 4, lambda: run(1))
    return lambda: seconds_of(lambda: run(calls)) / calls


# --- peers and ceilings --------------------------------------------------------------------------


class CopyableEnv(LegacyStepAPIWrapper):
    """gymnax's wrapper for rejax, which copies its configuration; the wrapper has no copy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyableEnv:
        return self


class Rejax:
    """rejax's PPO with the task's sizes and settings, evaluation off.

    Args:
      agents: None for one agent, else so many under `vmap`.
    """

    def __init__(self, task: Task, updates: int, agents: int | None = None):
        rejax: Any = importlib.import_module("rejax")

        config = task.config
        env, env_params = gymnax.make(task.env_id.removeprefix("gymnax/"))
        steps = updates * task.steps
        algo = rejax.PPO.create(
            env=CopyableEnv(env),
            env_params=env_params,
            agent_kwargs={"activation": config.activation, "hidden_layer_sizes": (64, 64)},
            num_envs=task.num_envs,
            num_steps=config.num_steps,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_eps=config.clip_epsilon,
            vf_coef=config.value_coef,
            ent_coef=config.entropy_coef,
            total_timesteps=steps,
            eval_freq=steps,
            skip_initial_evaluation=True,
        ).replace(eval_callback=lambda algo, state, key: None)
        self.updates = updates
        init, train = algo.init_state, lambda state: algo.train(train_state=state)[0]
        key = jax.random.PRNGKey(0)
        if agents is not None:
            init, train, key = jax.vmap(init), jax.vmap(train), jax.random.split(key, agents)
        self.state = jax.jit(init)(key)
        began = time.perf_counter()
        self.program = jax.jit(train, donate_argnums=0).lower(self.state).compile()
        self.compile_seconds = time.perf_counter() - began
        self.num_parameters = networks.num_parameters(
            (self.state.actor_ts.params, self.state.critic_ts.params)
        )

    def __call__(self) -> float:
        """Seconds per update."""
        began = time.perf_counter()
        self.state = jax.block_until_ready(self.program(self.state))
        return (time.perf_counter() - began) / self.updates


def raw_gymnax(task: Task, seconds: float) -> Measure:
    """Seconds in which gymnax's own step, resets included, does one rollout of random actions."""
    env, params = gymnax.make(task.env_id.removeprefix("gymnax/"))

    def function(actions: jax.Array, state: Any, key: jax.Array) -> tuple[Any, Any]:
        def step(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
            action, key = inputs
            keys = jax.random.split(key, task.num_envs)
            obs, state, reward, *ends, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                keys, state, action, params
            )
            return state, (obs, reward, ends)

        return jax.lax.scan(step, state, (actions, jax.random.split(key, len(actions))))

    keys = jax.random.split(jax.random.key(0), task.num_envs)
    _, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    # gymnax's first state is weakly typed, its next ones are not.
    state = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)
    actions = random_actions(task, int(env.action_space(params).n))
    return repeated(Part(function, actions, state), seconds)


def _envpool(task: Task) -> Any:
    import envpool

    name = task.env_id.removeprefix("envpool/")
    return envpool.make(
        name, env_type="gymnasium", num_envs=task.num_envs, seed=1, **dict(task.options)
    )


def raw_envpool(task: Task) -> Measure:
    """Seconds in which envpool, stepped from Python, does one rollout of random actions."""
    pool = _envpool(task)
    pool.reset()
    actions = np.asarray(random_actions(task, int(pool.action_space.n)))

    def play() -> None:
        for action in actions:
            pool.step(action)

    return lambda: seconds_of(play)


def xla_envpool(task: Task) -> Measure:
    """The same through envpool's XLA custom call, in a scan."""
    pool = _envpool(task)
    pool.reset()
    handle, _, _, step = pool.xla()
    actions = random_actions(task, int(pool.action_space.n))

    @jax.jit
    def play(handle: Any, actions: jax.Array) -> Any:
        def body(handle: Any, action: jax.Array) -> Any:
            handle, (obs, reward, *_) = step(handle, action)
            return handle, (obs, reward)

        return jax.lax.scan(body, handle, actions)

    jax.block_until_ready(play(handle, actions))
    return lambda: seconds_of(lambda: play(handle, actions))


# --- tasks ---------------------------------------------------------------------------------------


def measure_task(task: Task, args: Args) -> dict[str, Any]:
    """Everything about one task, as JSON."""
    trainer = Trainer(task, args.seconds)
    candidates: dict[str, Measure] = {"jaxrl": trainer}
    on_host = task.env_id.startswith("envpool/")
    rejax = None
    if task.peer == "rejax" and importlib.util.find_spec("rejax"):
        rejax = Rejax(task, trainer.updates)
        assert rejax.num_parameters == trainer.num_parameters
        candidates["rejax"] = rejax
    candidates |= Parts(task, task.make()).measures(args.seconds)
    if on_host:
        candidates |= {"simulator alone": raw_envpool(task), "XLA custom call": xla_envpool(task)}
        batch = max(1, task.steps // task.config.num_minibatches)
        torch_rate = convolution.torch_training_rate(batch, steps=2 if args.quick else 8)
        if torch_rate is not None:
            candidates["PyTorch images/s"] = torch_rate
    else:
        candidates["simulator alone"] = raw_gymnax(task, args.seconds)
    samples = alternate(candidates, args.repeats)
    result = {
        "env_id": task.env_id,
        "sizes": task.sizes(),
        "num_parameters": trainer.num_parameters,
        "compile_seconds": {"jaxrl": trainer.compile_seconds},
        "steps_per_second": rates(task, samples, Samples(tuple(trainer.valid_rates[1:]))),
        "seconds_per_update": {
            name: one.summary() for name, one in samples.items() if name != "PyTorch images/s"
        },
        "shares": shares(samples),
        "target": {"peer": task.peer, "at_least": task.target, "ratio": None},
    }
    if rejax is not None:
        result["compile_seconds"]["rejax"] = rejax.compile_seconds
    if "PyTorch images/s" in samples:
        images = samples["PyTorch images/s"]
        result["pytorch_images_per_second"] = images.summary()
        result["allowance"] = allowance(task, samples)
        allowed = task.steps / result["allowance"]["total"]
        result["steps_per_second"]["allowance"] = dict.fromkeys(("median", "min", "max"), allowed)
    speeds = result["steps_per_second"]
    if task.peer in speeds:
        ratio = speeds["jaxrl"]["median"] / speeds[task.peer]["median"]
        result["target"]["ratio"] = ratio
    return result


def rates(task: Task, samples: dict[str, Samples], valid: Samples) -> dict[str, Any]:
    """Environment steps a second; jaxrl's are those that are valid transitions."""
    names = [n for n in ("rejax", "simulator alone", "XLA custom call") if n in samples]
    per_second = {name: samples[name].map(lambda s: task.steps / s).summary() for name in names}
    if "XLA custom call" in samples:
        stepping = samples["env stepping"]
        per_second["host callback"] = stepping.map(lambda s: task.steps / s).summary()
    return {"jaxrl": valid.summary()} | per_second


def shares(samples: dict[str, Samples]) -> dict[str, float]:
    """The parts over the whole update; "shuffling" is within "learning"."""
    whole = samples["jaxrl"].median
    parts = ("env stepping", "inference", "learning")
    result = {name: samples[name].median / whole for name in parts}
    result["unaccounted"] = 1 - sum(result.values())
    return result | {"shuffling": samples["shuffling"].median / whole}


def allowance(task: Task, samples: dict[str, Samples]) -> dict[str, float]:
    """Seconds an update would take with PyTorch's image rate and nothing but its parts."""
    images = task.config.num_epochs * task.steps
    seconds = {
        "learning": images / samples["PyTorch images/s"].median,
        "inference": samples["inference"].median,
        "simulator": samples["simulator alone"].median,
    }
    return seconds | {"total": sum(seconds.values())}


# --- time to the first update --------------------------------------------------------------------


def time_to_first_update(repeats: int) -> dict[str, dict[str, float]]:
    """Phases in seconds: without a compilation cache, and the median run with a filled one."""
    with tempfile.TemporaryDirectory() as cache:
        cold = first_update_in(cache)
        warm = sorted((first_update_in(cache) for _ in range(repeats)), key=lambda r: r["total"])
    return {"empty cache": cold, "filled cache": warm[len(warm) // 2]}


def first_update_in(cache: str) -> dict[str, float]:
    """One process with its compilation cache below `cache`."""
    environment = dict(os.environ, XDG_CACHE_HOME=cache)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, str(FIRST_UPDATE), "--started", str(time.time())]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


# --- tables --------------------------------------------------------------------------------------


def _number(summary: dict[str, float], factor: float = 1.0, digits: int = 0) -> str:
    low, median, high = (factor * summary[key] for key in ("min", "median", "max"))
    if low == high:
        return f"{median:,.{digits}f}"
    return f"{median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def speed_table(results: dict[str, Any]) -> Table:
    """Steps a second."""
    title = "environment steps a second: median (min-max)"
    table = Table("task", "who", "steps/s", "jaxrl / it", "compile s", title=title)
    for name, result in results.items():
        speeds = result["steps_per_second"]
        for who, summary in speeds.items():
            ratio = speeds["jaxrl"]["median"] / summary["median"]
            compiling = result["compile_seconds"].get(who)
            table.add_row(
                name if who == "jaxrl" else "",
                who,
                _number(summary),
                f"{ratio:.2f}",
                "" if compiling is None else f"{compiling:.1f}",
            )
        if result["target"]["peer"] not in speeds:
            table.add_row("", result["target"]["peer"], install_hint(result["target"]["peer"]))
        table.add_row("", result["sizes"], f"{result['num_parameters']:,} parameters")
        table.add_section()
    return table


def install_hint(peer: str) -> str:
    """How to get what a missing row needs."""
    if peer == "rejax":
        return "not installed: pip install rejax==0.1.3"
    return f"needs PyTorch: {convolution.INSTALL_TORCH}"


def parts_table(results: dict[str, Any]) -> Table:
    """Where the time of an update goes."""
    title = "milliseconds of an update: median (min-max)"
    table = Table("task", "part, measured alone", "ms", "share", title=title)
    for name, result in results.items():
        seconds = result["seconds_per_update"]
        table.add_row(name, "whole update", _number(seconds["jaxrl"], 1e3, 2), "100%")
        for part in ("env stepping", "inference", "learning"):
            share = f"{result['shares'][part]:.0%}"
            table.add_row("", part, _number(seconds[part], 1e3, 2), share)
        unaccounted = result["shares"]["unaccounted"]
        gap = 1e3 * unaccounted * seconds["jaxrl"]["median"]
        table.add_row("", "unaccounted", f"{gap:,.2f}", f"{unaccounted:.0%}")
        share = f"{result['shares']['shuffling']:.0%}"
        table.add_row("", "shuffling (in learning)", _number(seconds["shuffling"], 1e3, 2), share)
        if "allowance" in result:
            text = ", ".join(f"{k} {1e3 * v:,.0f}" for k, v in result["allowance"].items())
            table.add_row("", "allowance", text)
            images = _number(result["pytorch_images_per_second"])
            table.add_row("", "PyTorch, images/s", images)
        table.add_section()
    return table


def first_update_table(phases: dict[str, dict[str, float]]) -> Table:
    """Seconds of each phase."""
    table = Table("phase", *phases, title="seconds to the first update (CartPole)")
    for phase in next(iter(phases.values())):
        digits = 0 if phase.startswith("programs") else 2
        table.add_row(phase, *(f"{one[phase]:.{digits}f}" for one in phases.values()))
    return table


def targets(results: dict[str, Any], phases: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Each target with what was measured; `holds` is None where a peer is missing."""
    rows = []
    for name, result in results.items():
        target = result["target"]
        ratio, least = target["ratio"], target["at_least"]
        holds = None if ratio is None else ratio >= least
        title = f"{name}: jaxrl / {target['peer']} >= {least}"
        rows.append({"target": title, "measured": ratio, "holds": holds})
    for cache, limit in (("empty cache", COLD_SECONDS), ("filled cache", WARM_SECONDS)):
        if phases:
            total = phases[cache]["total"]
            title = f"seconds to first update, {cache} <= {limit:g}"
            rows.append({"target": title, "measured": total, "holds": total <= limit})
    return rows


def targets_table(rows: list[dict[str, Any]]) -> Table:
    """All targets."""
    table = Table("target", "measured", "holds", title="targets")
    for row in rows:
        measured = "not measured" if row["measured"] is None else f"{row['measured']:.2f}"
        table.add_row(row["target"], measured, {True: "yes", False: "no"}.get(row["holds"], ""))
    return table


def main(args: Args, console: Console | None = None) -> dict[str, Any]:
    """Measure, print, write; the results."""
    console = console or Console()
    if args.quick:
        args = dataclasses.replace(args, repeats=1, seconds=0.01, first_update=False, output=None)
    tasks = {name: TASKS[name] for name in args.tasks}
    if args.quick:
        tasks = {name: small(task) for name, task in tasks.items()}
        if "cartpole" in tasks:
            tasks.pop("breakout", None)  # the same code again
    phases = time_to_first_update(max(1, args.repeats // 2)) if args.first_update else {}
    results = {}
    for name, task in tasks.items():
        console.print(f"measuring {name} ...")
        results[name] = measure_task(task, args)
    rows = targets(results, phases)
    console.print(speed_table(results))
    console.print(parts_table(results))
    if phases:
        console.print(first_update_table(phases))
    console.print(targets_table(rows))
    everything = {
        "machine": machine(),
        "tasks": results,
        "seconds_to_first_update": phases,
        "targets": rows,
    }
    if args.output is not None:
        write_json(args.output, everything)
    return everything


if __name__ == "__main__":
    main(tyro.cli(Args))
