"""Population-based bandits: the decisions against NumPy, and a moving optimum that is found."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_gaussian_process import dense_posterior

from jaxrl.ops.gaussian_process import Kernel
from jaxrl.tuning import PB2, PBT, Choice, Integer, LogUniform, Uniform
from jaxrl.tuning.evolution import pb2

N, P = 6, 5
SPACE = {"rate": LogUniform(1e-4, 1e-1), "size": Integer(1, 9), "x": Uniform(-1.0, 3.0)}


changes_of_scores = jax.jit(pb2.changes_of_scores)
model = jax.jit(functools.partial(pb2.model, space=SPACE))


def history(seed, phase):
    """Return scores, values and parents `[N, P]` after a phase."""
    rng = np.random.default_rng(seed)
    scores = np.where(np.arange(P) <= phase, rng.normal(10, 5, (N, P)), np.nan)
    scores[2, 1], scores[4, 2] = np.nan, -np.inf
    values = {
        "x": rng.uniform(-1, 3, (N, P)),
        "rate": 10 ** rng.uniform(-4, -1, (N, P)),
        "size": rng.integers(1, 10, (N, P)),
    }
    parents = np.where(np.arange(P) < phase, rng.integers(0, N, (N, P)), np.arange(N)[:, None])
    return scores.astype(np.float32), values, parents


def reference_data(scores, values, parents):
    """Return `[n, 2 + d]` known points, time first and score last, and changes, by loops."""
    finite = scores[np.isfinite(scores)]
    rows, changes = [], []
    for trial in range(N):
        for phase in range(1, P):
            before = scores[parents[trial, phase - 1], phase - 1]
            change = scores[trial, phase] - before
            if np.isfinite(before) and np.isfinite(change):
                scaled = (before - finite.min()) / np.ptp(finite)
                rows.append([phase, *unit(values, (trial, phase)), scaled])
                changes.append(change)
    changes = np.array(changes)
    return np.array(rows), np.clip((changes - changes.mean()) / changes.std(), -2, 2)


def unit(values, place):
    """Return the places of values in the unit cube, as `SPACE` says."""
    return [
        (np.log10(values["rate"][place]) + 4) / 3,
        (values["size"][place] - 0.5) / 9,
        (values["x"][place] + 1) / 4,
    ]


def arrays(values):
    return {
        name: jnp.array(x, jnp.int32 if name == "size" else jnp.float32)
        for name, x in values.items()
    }


def test_the_model_is_given_the_changes_from_what_was_copied():
    scores, values, parents = history(0, phase=3)
    rows, expected = reference_data(scores, values, parents)
    changes = changes_of_scores(scores, parents, scores[:, 3])
    posterior = model(changes, arrays(values))
    is_set = np.asarray(posterior.is_set)
    assert not is_set[-N:].any()
    found = np.c_[posterior.points.time, posterior.points.inputs][is_set]
    np.testing.assert_allclose(found, rows, atol=1e-5)
    np.testing.assert_allclose(changes.change[changes.is_known], expected, atol=1e-5)
    kernel = Kernel(*map(float, posterior.kernel))
    new = np.random.default_rng(1).random((9, 5))
    mean = dense_posterior(kernel, rows, expected, new)[0]
    points = pb2.Points(jnp.array(new[:, 0]), jnp.array(new[:, 1:]))
    np.testing.assert_allclose(pb2.upper_bound(posterior, points, 0.0), mean, atol=1e-3)


@pytest.mark.parametrize(
    ("num_observed", "beta"), [(0, 0.2), (1, 0.2), (2, 0.2), (30, 0.2 + np.log(12))]
)
def test_the_weight_of_the_variance_grows_with_the_observations(num_observed, beta):
    assert pb2.exploration(jnp.int32(num_observed)) == pytest.approx(beta)


def test_copies_take_the_largest_bound_one_after_another():
    scores, values, parents = history(2, phase=3)
    rows, observed = reference_data(scores, values, parents)
    changes = changes_of_scores(scores, parents, scores[:, 3])
    posterior = model(changes, arrays(values))
    kernel = Kernel(*map(float, posterior.kernel))
    is_copy = np.array([False, True, False, True, True, False])
    now = {name: x[:, 3] for name, x in arrays(values).items()}
    key, number = jax.random.key(3), 40
    placed = jax.jit(functools.partial(pb2.place, num_candidates=number, space=SPACE))
    found = placed(
        key, posterior=posterior, phase=4, before=changes.next_before,
        is_copy=jnp.array(is_copy), values=now,
    )  # fmt: skip
    beta = 0.2 + np.log(0.4 * len(rows))
    keys = jax.random.split(key, N)
    for place, trial in enumerate([0, 2, 5, 1, 3, 4]):
        own = {name: np.asarray(x[trial]) for name, x in found.items()}
        before = float(changes.next_before[trial])
        if is_copy[trial]:
            u = jax.random.uniform(keys[place], (3, number))
            drawn = {
                name: np.asarray(part.at(x))
                for (name, part), x in zip(SPACE.items(), u, strict=True)
            }
            points = [[4, *unit(drawn, i), before] for i in range(number)]
            mean, deviation = dense_posterior(kernel, rows, observed, np.array(points))
            best = np.argmax(mean + np.sqrt(beta) * deviation)
            assert own == {name: x[best] for name, x in drawn.items()}
        else:
            assert own == {name: x[trial] for name, x in now.items()}
        point = np.array([[4, *unit(own, ()), before]])
        mean = dense_posterior(kernel, rows, observed, point)[0]
        rows, observed = np.concatenate([rows, point]), np.concatenate([observed, mean])


def test_choices_are_explored_as_by_pbt():
    space = {"gamma": Choice((0.9, 0.99, 0.999))}
    values = {"gamma": jnp.tile(jnp.array([0.9, 0.99, 0.999] * 4)[:, None], (1, P))}
    scores = jnp.array(np.random.default_rng(0).normal(size=(12, P)), jnp.float32)
    parents, found = jnp.zeros((12, P), jnp.int32), {}
    for kind in (PB2, PBT):
        rule = kind(12, P, quantile=0.5)
        # PB2 has one more use for its key.
        number = 3 if kind is PB2 else 2
        exploit, explore = jax.random.split(jax.random.key(1), number)[:2]
        parent = rule.exploit(exploit, scores[:, 1])
        explored = rule.explore(explore, {"gamma": values["gamma"][parent, 1]}, space)
        generation = rule.evolve(jax.random.key(1), jnp.int32(1), scores, values, parents, space)
        np.testing.assert_array_equal(generation.parent, parent)
        is_copy = parent != np.arange(12)
        expected = np.where(is_copy, explored["gamma"], values["gamma"][:, 1])
        np.testing.assert_array_equal(generation.values["gamma"], expected)
        found[kind] = is_copy.sum()
    assert found[PB2] == found[PBT] == 6


NUM_PHASES, NUM_TRIALS = 12, 8
MOVING = {"x": Uniform(0.0, 1.0), "y": LogUniform(1e-4, 1e-1)}


def final_scores(rule, key):
    """Return the scores `[N]` after a search whose best values move.

    In each phase an agent gains up to 1, less the further its values are from the optimum, which
    moves through the square from one corner to the other.
    """
    start_key, evolve_key, noise_key = jax.random.split(key, 3)
    keys = jax.random.split(start_key, NUM_TRIALS)
    drawn = {
        name: jax.vmap(part.draw)(jax.vmap(jax.random.fold_in, (0, None))(keys, i))
        for i, (name, part) in enumerate(MOVING.items())
    }
    own = jnp.arange(NUM_TRIALS, dtype=jnp.int32)
    columns = jnp.arange(NUM_PHASES)
    values = {name: jnp.tile(x[:, None], (1, NUM_PHASES)) for name, x in drawn.items()}
    parents = jnp.tile(own[:, None], (1, NUM_PHASES))
    noise = 0.05 * jax.random.normal(noise_key, (NUM_PHASES, NUM_TRIALS))

    def step(carry, phase):
        score, scores, values, parents = carry
        best = 0.15 + 0.7 * phase / (NUM_PHASES - 1)
        square = sum((MOVING[name].unit(x[:, phase]) - best) ** 2 for name, x in values.items())
        score = score + jnp.exp(-square / (2 * 0.2**2)) + noise[phase]
        scores = scores.at[:, phase].set(score)
        key = jax.random.fold_in(evolve_key, phase)
        parent, following = rule.evolve(key, phase, scores, values, parents, MOVING)
        values = {
            name: jnp.where(columns > phase, following[name][:, None], x)
            for name, x in values.items()
        }
        carry = (score[parent], scores, values, parents.at[:, phase].set(parent))
        return carry, None

    scores = jnp.full((NUM_TRIALS, NUM_PHASES), jnp.nan)
    start = (jnp.zeros(NUM_TRIALS), scores, values, parents)
    (_, scores, _, _), _ = jax.lax.scan(step, start, columns)
    return scores[:, -1]


@pytest.mark.exhaustive
def test_a_moving_optimum_is_found_better_than_by_random_exploration():
    """Both copy alike; they differ in the values that copies take."""
    keys = jax.random.split(jax.random.key(7), 16)
    best = {}
    for rule in (
        PB2(NUM_TRIALS, NUM_PHASES, quantile=0.25, candidates=32),
        PBT(NUM_TRIALS, NUM_PHASES, quantile=0.25, resample=1.0),
    ):
        run = jax.jit(lambda keys, rule=rule: jax.lax.map(lambda k: final_scores(rule, k), keys))
        best[type(rule)] = np.asarray(run(keys)).max(axis=1)
    gain = best[PB2] - best[PBT]
    assert gain.mean() > 4 * gain.std() / np.sqrt(len(gain))


def test_a_bad_number_of_candidates_is_refused():
    with pytest.raises(ValueError, match="candidates must be an integer >= 1, got 0"):
        PB2(N, P, candidates=0)
