"""The contract of explorers: all of jaxrl's keep it, and violations are named."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.tuning import (
    MFPBT,
    PB2,
    PBT,
    Choice,
    Generation,
    Integer,
    LogUniform,
    QLogUniform,
    RandomSearch,
    Status,
    Uniform,
    check_explorer,
)
from jaxrl.tuning.schedulers.contract import MEMBERS, require_scheduler

ALL = {
    "x": Uniform(-1, 3),
    "rate": LogUniform(1e-4, 1e-1),
    "size": Integer(1, 9),
    "even": QLogUniform(2, 64, q=2),
    "rung": QLogUniform(2, 100, rungs=4),
    "gamma": Choice((0.9, 0.99, 0.999)),
}
SPACE = {"x": Uniform(0.5, 1.5), "size": Integer(1, 3)}
N, P = 8, 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("explorer", "space"),
    [
        pytest.param(PBT(N, P), ALL, marks=pytest.mark.exhaustive),
        pytest.param(PBT(1, 1), SPACE, marks=pytest.mark.exhaustive),
        (PB2(N, P, candidates=8), ALL),
        pytest.param(PB2(2, 1, candidates=8), SPACE, marks=pytest.mark.exhaustive),
        (MFPBT(N, P, (1, 2)), SPACE),
    ],
    ids=["PBT", "PBT-1", "PB2", "PB2-2", "MFPBT"],
)
def test_every_explorer_keeps_the_contract(explorer, space):
    check_explorer(explorer, space)


def test_what_is_no_explorer_is_named():
    with pytest.raises(ValueError, match="it has no evolve"):
        check_explorer(RandomSearch(2, 2), SPACE)  # pyrefly: ignore[bad-argument-type]
    plain = type("Plain", (), {name: getattr(PBT(4, 2), name) for name in (*MEMBERS, "evolve")})()
    with pytest.raises(ValueError, match="it is no dataclass"):
        check_explorer(plain, SPACE)
    with pytest.raises(ValueError, match="a frozen dataclass of your own"):
        require_scheduler(plain)  # without the fields it would be no explorer, and never evolve


@dataclasses.dataclass(frozen=True)
class Evolved(PBT):
    """An explorer that copies the best; a function of the call's arguments changes the rest."""

    num_trials: int = 4
    num_phases: int = 2
    change = staticmethod(lambda generation, phase, scores, values: generation)

    def evolve(self, key, phase, scores, values, parents, space):
        parent = self.exploit(key, scores[:, phase])
        following = {name: x[parent, phase] for name, x in values.items()}
        return self.change(Generation(parent, following), phase, scores, values)


def evolved(change):
    return type("Evolved", (Evolved,), {"change": staticmethod(change)})()


def with_values(generation, **values):
    return generation._replace(values=generation.values | values)


def copy_the_last(generation, phase, scores, values):
    """Copy the best of the scores, of which NaN is the largest for `argsort`."""
    parent = jnp.argsort(scores[:, phase])[jnp.full(4, -1)].astype(jnp.int32)
    return Generation(parent, {name: x[parent, phase] for name, x in values.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, *_: tuple(g), r"a Generation with the values \['size', 'x'\]"),
        (lambda g, *_: g._replace(values={"x": g.values["x"]}), "a Generation with the values"),
        (lambda g, *_: with_values(g, size=g.values["size"] * 1.0), "size must be int32.*float32"),
        (lambda g, *_: with_values(g, x=g.values["x"][:2]), r"x must be float32\[4\], is float32"),
        (lambda g, *_: g._replace(parent=g.parent + 0.0), "parent must be int32"),
        (
            lambda g, *_: with_values(g, x=np.sort(g.values["x"])),
            "evolve must .* failed with Tracer",
        ),
        (lambda g, *_: g._replace(parent=g.parent + 1), "parent must be from 0 to 3"),
        (lambda g, *_: with_values(g, x=g.values["x"] * 4), r"x must be within Uniform\(low=0.5"),
        (lambda g, *_: with_values(g, size=g.values["size"] - 3), "size must be within Integer"),
        (lambda g, *_: with_values(g, x=2 - g.values["x"]), "x changes for a trial that keeps"),
        (lambda g, *_: with_values(g, x=g.values["x"] * jnp.nan), "x must be within"),
        (copy_the_last, "whose score is nan, after phase . with some missing scores"),
        (
            lambda g, *_: with_values(g, x=jnp.full(4, np.random.default_rng().uniform(0.5, 1.5))),
            "differs from call to call: all randomness must come from the key",
        ),
    ],
)
def test_bad_generations_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        check_explorer(evolved(change), SPACE)


def test_an_explorer_that_stops_or_pauses_trials_is_named():
    @dataclasses.dataclass(frozen=True)
    class Stops(PBT):
        def judge(self, ledger, trial):
            return ledger.status.at[trial].set(Status.STOPPED)

    @dataclasses.dataclass(frozen=True)
    class Pauses(PBT):
        pauses: bool = True

    with pytest.raises(ValueError, match="an explorer stops no trial"):
        check_explorer(Stops(N, P), SPACE)
    with pytest.raises(ValueError, match="pauses must be False"):
        check_explorer(Pauses(N, P), SPACE)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "space must be a dictionary with at least one distribution"),
        ({"core": Choice(("gru", "lstm"))}, r"space\['core'\] must have numbers only"),
        ({"x": 3}, r"space\['x'\] must be a distribution"),
    ],
)
def test_a_space_that_no_search_explores_is_refused(space, message):
    with pytest.raises(ValueError, match=message):
        check_explorer(PBT(N, P), space)


def test_an_explorer_that_only_copies_keeps_the_contract():
    check_explorer(Evolved(), SPACE, seed=3)
