"""`check_env` accepts environments that keep the contract, and names every violation."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.types import TimeStep


@dataclass(frozen=True)
class Corridor:
    """A corridor to walk through to the right; `breaks` names its violation of the contract."""

    num_envs: int = 3
    breaks: str = ""
    id: str = "own/Corridor"
    length: int = 4
    checkpointable: bool = True

    @property
    def options(self):
        return {}

    @property
    def observation_space(self):
        return jaxrl.Box.of((1,), np.float32, 0, self.length)

    @property
    def action_space(self) -> Any:
        return None if self.breaks == "space" else jaxrl.Discrete(2)

    def for_evaluation(self, num_envs):
        if self.breaks == "evaluation":
            return self
        return dataclasses.replace(self, num_envs=num_envs)

    def init(self, key):
        place = jnp.zeros(self.num_envs, jnp.int32)
        no = jnp.zeros(self.num_envs, bool)
        if self.breaks == "observation":
            return self.observe(place)
        first = no if self.breaks == "init" else ~no
        if self.breaks == "tuple":
            return (place, no), (self.observe(place), no)
        return (place, no), TimeStep(self.observe(place), place * 0.0, no, no, first)

    def step(self, key, state, action):
        place, first = state
        place = jnp.where(first, 0, place + action)
        there = place == self.length
        cut = there if self.breaks == "both" else jnp.zeros_like(there)
        reward = there.astype(jnp.float32)
        if self.breaks == "reward dtype":
            reward = there
        if self.breaks == "reward of first":
            reward = reward + first
        if self.breaks == "not finite":
            reward = reward / (1 - reward)
        if self.breaks == "random":
            reward = jnp.where(first, 0.0, reward + self.noise())
        shown = first
        if self.breaks == "never first":
            shown = jnp.zeros_like(first)
        if self.breaks == "always first":
            shown, reward = jnp.ones_like(first), reward * 0
        if self.breaks == "gymnax":
            return self.observe(place), (place, there), reward, there, {}
        state = (place.astype(jnp.float32) if self.breaks == "state" else place, there)
        if self.breaks == "structure":
            state = (place,)
        if self.breaks == "container":
            state = [place, there]
        return state, TimeStep(self.observe(place), reward, there, cut, shown)

    def observe(self, place):
        obs = place[:, None].astype(jnp.float32)
        if self.breaks == "shape":
            return obs[:, 0]
        if self.breaks == "parts":
            return {"place": obs}
        return obs + 1 if self.breaks == "bounds" else obs

    def noise(self):
        return jax.pure_callback(
            lambda: np.float32(np.random.default_rng().random()),
            jax.ShapeDtypeStruct((), np.dtype(np.float32)),
            vmap_method="sequential",
        )


def test_a_user_environment_passes():
    env: Any = Corridor()
    assert isinstance(env, jaxrl.Env)  # what is checked is all that the type asks for
    jaxrl.check_env(env)


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        ("space", "action_space must be Discrete, MultiDiscrete or Box, is None"),
        ("tuple", r"init must return \(state, jaxrl.TimeStep\), got \(state, tuple\)"),
        ("observation", r"init must return \(state, jaxrl.TimeStep\), got no tuple"),
        ("gymnax", r"step must return \(state, jaxrl.TimeStep\), got 5 values"),
        ("evaluation", r"for_evaluation\(2\) must have 2 environments, has 3"),
        ("reward dtype", r"step: reward must be float32\[3\], is bool\[3\]"),
        ("shape", r"init: obs must be float32\[3, 1\], is float32\[3\]"),
        ("parts", "init: obs must have the parts of"),
        ("state", r"the state's leaf \[0\] is int32\[3\] after init, float32\[3\] after step"),
        ("structure", r"of the structure that init returns, but only one of them has state\.1$"),
        ("container", "init returns, but their containers or constants differ$"),
        ("init", "init must set `first`"),
        ("both", "are both set"),
        ("never first", "the step after an end must begin the next episode"),
        ("always first", "`first` is set although the step before ended no episode"),
        ("reward of first", "the step that begins an episode must pay reward 0"),
        ("not finite", "a reward is not finite"),
        ("bounds", "obs must be within 0.0 to 4.0 as its space says, is 1 to 5"),
        ("random", "all randomness must come from the key"),
    ],
)
def test_a_violation_is_named(breaks, message):
    env: Any = Corridor(breaks=breaks)
    with pytest.raises(ValueError, match=message):
        jaxrl.check_env(env)


def test_a_failing_simulator_is_a_violation_and_is_not_logged(caplog):
    class OldApi(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_):
            return np.zeros(3, np.float32), {}

        def step(self, action) -> Any:
            return np.zeros(3, np.float32), 0.0, False, {}

    with pytest.raises(ValueError, match=r"failed in step[\s\S]*step must return .*got 4 values$"):
        jaxrl.check_env(jaxrl.make(OldApi, 2))
    assert not caplog.records


def test_a_check_without_an_end_says_so():
    env: Any = Corridor()
    with pytest.warns(UserWarning, match=r"Corridor: no episode ended within 2 steps"):
        jaxrl.check_env(env, num_steps=2)


@dataclass(frozen=True)
class Spaced(Corridor):
    """A corridor that one walks through whatever one does, with any spaces."""

    shape: tuple[int, ...] = (1,)
    low: float = -1.0
    high: float = 1.0

    @property
    def observation_space(self):
        return jaxrl.Box.of(self.shape, np.float32, 0, self.length)

    @property
    def action_space(self) -> Any:
        return jaxrl.Box.of((1,), np.float32, self.low, self.high)

    def step(self, key, state, action):
        return super().step(key, state, jnp.ones(self.num_envs, jnp.int32))

    def observe(self, place):
        return jnp.zeros((self.num_envs, *self.shape))


@dataclass(frozen=True)
class Strict(Corridor):
    """A corridor in which only steps to the right are allowed; others give a reward of NaN."""

    mask_size: int = 2

    @property
    def observation_space(self) -> Any:
        mask = jaxrl.Box.of((self.mask_size,), np.float32, 0, 1)
        return jaxrl.Dict.of(place=super().observation_space, action_mask=mask)

    def observe(self, place):
        allowed = jnp.arange(self.mask_size) == 1
        mask = jnp.broadcast_to(allowed, (self.num_envs, self.mask_size)).astype(jnp.float32)
        return {"place": super().observe(place), "action_mask": mask}

    def step(self, key, state, action):
        outcome: Any = super().step(key, state, action)
        state, timestep = outcome
        return state, timestep._replace(reward=jnp.where(action == 0, jnp.nan, timestep.reward))


def test_a_check_takes_allowed_actions_only():
    env: Any = Strict()
    jaxrl.check_env(env, num_steps=20)
    env = Strict(mask_size=3)
    with pytest.raises(ValueError, match=r"'action_mask' must be an array of shape \(2,\) for"):
        jaxrl.check_env(env)


@pytest.mark.parametrize(
    ("spaces", "doubt"),
    [
        (
            {"shape": (3, 8, 9)},
            r"obs has the shape \(3, 8, 9\), which is read as height, .*; if its",
        ),
        ({"low": 0.0, "high": 255.0}, "actions are a Box with bounds 0 and 255, but policies"),
        ({"low": -0.01, "high": 0.01}, "bounds -0.01 and 0.01, but"),
        ({"low": 99.0, "high": 101.0}, "bounds 99 and 101, but"),
    ],
)
def test_a_check_warns_of_what_is_often_a_mistake(spaces, doubt):
    env: Any = Spaced(**spaces)
    with pytest.warns(UserWarning, match=rf"Corridor: .*{doubt}"):
        jaxrl.check_env(env, num_steps=8)
    usual: list[Any] = [Spaced(shape=(8, 9, 3)), Spaced(low=-np.inf), Spaced(low=-5.0, high=2.0)]
    for env in usual:
        jaxrl.check_env(env, num_steps=8)


@pytest.mark.filterwarnings("ignore:.*no episode ended")
def test_the_simulators_of_a_check_are_closed():
    env = jaxrl.make("envpool/CartPole-v1", 2)
    before = set(callback._groups)
    jaxrl.check_env(env, num_steps=3)
    assert set(callback._groups) <= before


def test_missing_members_are_named():
    env: Any = object()
    with pytest.raises(ValueError, match="it has no id, num_envs, options"):
        jaxrl.check_env(env)


def test_methods_of_an_instance_are_its_own():
    within = Corridor()
    env: Any = Corridor()
    for name in ("init", "step", "for_evaluation"):
        object.__setattr__(env, name, getattr(within, name))
    jaxrl.check_env(env)


def test_a_wrapper_that_finds_methods_within_is_refused():
    """Its evaluations would play in the environments within, without what it changes."""

    @dataclass(frozen=True)
    class Wrapper:
        env: Any

        def __getattr__(self, name):
            return getattr(self.env, name)

        def init(self, key):
            return self.env.init(key)

        def step(self, key, state, action):
            return self.env.step(key, state, action)

    wrapped: Any = Wrapper(Corridor())
    with pytest.raises(ValueError, match="its class has no for_evaluation, which __getattr__"):
        jaxrl.check_env(wrapped)


def test_an_unhashable_environment_is_refused():
    class Unhashable(Corridor):
        __hash__ = None

    env: Any = Unhashable(num_envs=0)
    with pytest.raises(ValueError, match=r"cannot be hashed.*\n.*num_envs must be an integer >= 1"):
        jaxrl.check_env(env)
