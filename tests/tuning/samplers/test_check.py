"""The contract of samplers: jaxrl's keep it, and violations are named."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.tuning import (
    Choice,
    ExpectedImprovement,
    Integer,
    LogUniform,
    QLogUniform,
    Sobol,
    Uniform,
    When,
    check_sampler,
)

ALL = {
    "x": Uniform(-1, 3),
    "rate": LogUniform(1e-4, 1e-1),
    "size": Integer(1, 9),
    "rung": QLogUniform(2, 100, rungs=4),
    "gamma": Choice((0.9, 0.99, 0.999)),
    "y": When("gamma", 0.9, Uniform(0, 1)),
}
SPACE = {"x": Uniform(0.5, 1.5), "size": Integer(1, 3)}
N = 8


def test_sobol_keeps_the_contract():
    check_sampler(Sobol(), ALL)


@pytest.mark.slow
def test_expected_improvement_keeps_the_contract():
    check_sampler(ExpectedImprovement(initial=3, candidates=16), ALL, num_trials=N)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A sampler whose plan is changed by a function."""

    change = staticmethod(lambda values, key: values)

    def plan(self, key, num_trials, space):
        return self.change(Sobol().plan(key, num_trials, space), key)


@dataclasses.dataclass(frozen=True)
class Chosen(Sobol):
    """A sampler whose choices are a function of the ledger, the values and who begins."""

    change = staticmethod(lambda values, ledger, begins: values)

    def choose(self, key, begins, ledger, values, space):
        return self.change(values, ledger, begins)


def planned(change):
    return type("Other", (Planned,), {"change": staticmethod(change)})()


def chosen(change):
    return type("Other", (Chosen,), {"change": staticmethod(change)})()


def random_callback(x):
    """Return random numbers of NumPy's, which no key decides, at each call of the program."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    draw = lambda x: np.random.default_rng().uniform(0.5, 1.5, x.shape).astype(x.dtype)  # noqa: E731
    return jax.pure_callback(draw, shape, x, vmap_method="broadcast_all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, _: tuple(v.values()), r"plan must return a dictionary .*\['size', 'x'\]"),
        (lambda v, _: {"x": v["x"]}, r"plan must return a dictionary .*\['size', 'x'\]"),
        (lambda v, _: v | {"size": v["size"] * 1.0}, r"plan: size must be int32\[8\], is float32"),
        (lambda v, _: v | {"x": v["x"][1:]}, r"plan: x must be float32\[8\], is float32\[7\]"),
        (lambda v, _: v | {"x": v["x"] + 1}, r"plan: x must be within Uniform\(low=0.5, .* is "),
        (lambda v, _: v | {"x": v["x"] * jnp.nan}, "plan: x must be within .*, is nan"),
        (lambda v, _: v | {"size": v["size"] - 1}, "plan: size must be within Integer.*, is 0"),
        (lambda v, _: v | {"x": jnp.asarray(np.asarray(v["x"]))}, "plan must work inside jit"),
        (
            lambda v, _: v | {"x": jnp.full(N, np.random.default_rng().uniform(0.5, 1.5))},
            "plan differs from call to call: all randomness must come from the key",
        ),
        (lambda v, _: v | {"x": random_callback(v["x"])}, "plan gives other values the next time"),
    ],
)
def test_bad_plans_are_named(change, message):
    with pytest.raises(ValueError, match=f"(?s)breaks the contract of samplers.*{message}"):
        check_sampler(planned(change), SPACE, N)


def add_the_sum(values, ledger, begins):
    """Return values that are NaN if a trial has reported a phase without an episode."""
    scores = jnp.where(ledger.reported > 0, ledger.scores[:, 0], 0)
    return values | {"x": jnp.clip(values["x"] + scores.sum(), 0.5, 1.5)}


def copy_the_last(values, ledger, begins):
    """Copy the last trial, which has not begun in the first rounds."""
    return {name: jnp.full_like(x, x[-1]) for name, x in values.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, *_: {"x": v["x"]}, r"choose must return a dictionary .*\['size', 'x'\]"),
        (lambda v, *_: v | {"size": v["size"] * 1.0}, "choose: size must be int32"),
        (
            lambda v, ledger, begins: v | {"x": v["x"] * (1 if begins[0] else 2)},
            "choose must work inside jit",
        ),
        (lambda v, *_: v | {"x": v["x"] + 1}, "choose: x must be within Uniform.* usual scores"),
        (add_the_sum, "choose: x must be within [^-]*, is nan, with no scores"),
        (copy_the_last, "choose depends on the plans of trials that begin later"),
        (
            lambda v, *_: v | {"x": jnp.full(N, np.random.default_rng().uniform(0.5, 1.5))},
            "choose differs from call to call: all randomness must come from the key",
        ),
        (lambda v, *_: v | {"x": random_callback(v["x"])}, "choose gives other values the next"),
    ],
)
def test_bad_choices_are_named(change, message):
    with pytest.raises(ValueError, match=f"(?s)breaks the contract of samplers.*{message}"):
        check_sampler(chosen(change), SPACE, N)


def test_values_of_trials_that_do_not_begin_are_free():
    check_sampler(chosen(lambda v, _, begins: v | {"x": jnp.where(begins, v["x"], 9.0)}), SPACE, N)


def test_what_is_no_sampler_is_named():
    with pytest.raises(ValueError, match="it is a class: make an instance"):
        check_sampler(Sobol, SPACE)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="it has no plan"):
        check_sampler("sobol", SPACE)  # pyrefly: ignore[bad-argument-type]
    mutable = dataclasses.make_dataclass("Mutable", [], namespace={"plan": Sobol.plan})
    with pytest.raises(ValueError, match="cannot be hashed"):
        check_sampler(mutable(), SPACE)
    with pytest.raises(ValueError, match="num_trials must be an integer >= 2, got 1"):
        check_sampler(Sobol(), SPACE, 1)
    with pytest.raises(ValueError, match=r"space\['x'\] must have numbers only"):
        check_sampler(Sobol(), {"x": Choice(("a", "b"))})
