"""Lineages: what explorers decide from plain numbers, and whose schedule led to an agent."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.tuning import PBT, Choice, Generation, Integer, Uniform
from jaxrl.tuning.evolution.lineage import Change, Evolution

N, P = 4, 3
SPACE = {"rate": Uniform(0.0, 1.0), "gamma": Choice((0.9, 0.99)), "count": Integer(1, 9)}


class Records(PBT):
    """An explorer that copies trial 0, and tells in its values what it was given."""

    def evolve(self, key, phase, scores, values, parents, space):
        told = scores[:, phase] + 0.001 * parents[:, 0] + 0.01 * phase
        changed = {"rate": told, "gamma": values["gamma"][:, -1], "count": values["count"][:, 0]}
        return Generation(jnp.zeros(N, jnp.int32), changed)


def test_an_explorer_sees_all_earlier_phases_as_in_one_program():
    scores = jnp.full((N, P), jnp.nan).at[:, 0].set(0.1 * jnp.arange(N))
    first = {t: {"rate": 0.5, "gamma": (0.9, 0.99)[t % 2], "count": t + 1} for t in range(N)}
    evolution = Evolution(Records(N, P), SPACE, jax.random.key(0))
    one = evolution.next(scores, first, [])
    np.testing.assert_allclose([c.values["rate"] for c in one], [0, 0.101, 0.202, 0.303], 1e-5)
    assert [c.parent for c in one] == [0] * N
    assert [c.values["gamma"] for c in one] == [0.9, 0.99, 0.9, 0.99]  # exactly a choice
    moved = [change._replace(parent=(trial + 1) % N) for trial, change in enumerate(one)]
    moved[1] = Change(2, moved[1].values | {"gamma": 0.9})
    two = evolution.next(scores.at[:, 1].set(0.2), first, [moved])
    np.testing.assert_allclose([c.values["rate"] for c in two], [0.211, 0.212, 0.213, 0.21], 1e-5)
    assert [c.values["gamma"] for c in two] == [0.9, 0.9, 0.9, 0.99]
    assert [c.values["count"] for c in two] == [1, 2, 3, 4]
    assert all(type(c.values["count"]) is int for c in two)
