"""Bayesian optimization: new trials take the settings that promise the largest improvement."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from jaxrl import checks
from jaxrl.ops import gaussian_process
from jaxrl.ops.gaussian_process import Kernel, Points, Posterior
from jaxrl.tuning.samplers.sobol import Sobol
from jaxrl.tuning.schedulers.contract import Ledger
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array

# Kernels to choose from: lengths in the unit cube, and noise as a part of the scores' variance.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8, 1.6)
NOISES = (0.01, 0.1, 0.5)
NEAR = 0.1
"""The standard deviation of candidates around the best trial, in the unit cube."""


@dataclass(frozen=True)
class ExpectedImprovement:
    """Bayesian optimization by expected improvement (Jones et al. 1998).

    The first `initial` trials, and all that begin before a score is known, take points of `Sobol`.
    Each later one takes the settings x that maximize

        E[max(f(x) - f*, 0)] = (mu - f*) Phi(z) + sigma phi(z),    z = (mu - f*) / sigma,

    where a Gaussian process in the unit cube predicts mean mu and standard deviation sigma of a
    setting's score f, and f* is the highest mean of a trial so far. The maximum is that of random
    candidates, which are drawn once a round: half are uniform, half near the best trial. Trials
    that begin together are chosen one after another, and each takes a candidate of its own. Each,
    and each trial without a score, counts as an observation at its mean from then on (Desautels et
    al. 2014), so that they spread.

    Schedulers stop trials early, so two trials are compared by their scores of the last phase for
    which both have one. A trial's observation is its share of won comparisons as a quantile of the
    normal distribution. Trials that diverged (-inf) lose to all others. A trial that has no score
    yet (NaN) is not observed.

    Choices are numbers in ascending order, at equal distances. What is known when a trial begins
    depends on the number of lanes, and so do its settings. Fewer lanes know more.

    The kernel is the one of the largest likelihood among 15. A round in which trials begin costs
    time that grows with the cube of the number of trials. With 256 trials on two shared CPU cores
    it costs 0.05 seconds if one trial begins, and 0.2 if 64 begin.
    """

    initial: int = 8
    """Trials that begin with points of `Sobol`."""
    candidates: int = 512
    """Settings of which the trials of a round take the best; if they are too few, the others keep
    their points of `Sobol`."""

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "initial", "candidates")

    def plan(self, key: Array, num_trials: int, space: spaces.Space) -> dict[str, Array]:
        """Return points of `Sobol`; see `Sampler.plan`.

        Raises:
          ValueError: if no trial is left to be chosen.
        """
        if num_trials <= self.initial:
            raise ValueError(
                f"ExpectedImprovement chooses for no trial: its initial={self.initial} trials keep "
                f"points of Sobol, and the search has {num_trials} trials; lower `initial`, or "
                "search more trials"
            )
        return Sobol().plan(key, num_trials, space)

    def choose(
        self,
        key: Array,
        begins: Array,
        ledger: Ledger,
        values: dict[str, Array],
        space: spaces.Space,
    ) -> dict[str, Array]:
        """Return the settings of trials that begin; see `AdaptiveSampler.choose`."""
        observed, has_score = normal_scores(ledger.scores)
        planned = spaces.places(space, values)
        posterior = model(planned, observed, has_score)
        means = gaussian_process.predict(posterior, posterior.points)[0]
        best = jnp.argmax(jnp.where(has_score, means, -jnp.inf))
        candidates = self.candidates_near(
            jax.random.fold_in(key, jnp.argmax(begins)), planned[best], space
        )
        is_unknown = (begins | (ledger.reported > 0)) & ~has_score
        is_chosen = begins & (jnp.arange(len(begins)) >= self.initial) & has_score.any()
        places = choose_in_turn(posterior, means[best], planned, candidates, is_unknown, is_chosen)
        changes = (places != planned).any(-1)
        return {
            name: jnp.where(changes, x.astype(values[name].dtype), values[name])
            for name, x in spaces.at(space, places).items()
        }

    def candidates_near(self, key: Array, best: Array, space: spaces.Space) -> Array:
        """Return places of settings, `[candidates, d]`: half anywhere, half near the best trial."""
        far_key, near_key = jax.random.split(key)
        number, dimensions = self.candidates // 2, len(best)
        near = best + NEAR * jax.random.normal(near_key, (number, dimensions))
        far = jax.random.uniform(far_key, (self.candidates - number, dimensions))
        drawn = jnp.concatenate([far, jnp.clip(near, 0, 1)])
        return spaces.places(space, spaces.at(space, drawn))


def model(places: Array, observed: Array, has_score: Array) -> Posterior:
    """Return the Gaussian process given the observations `[N]` at places `[N, d]`."""
    grid = jnp.array(list(itertools.product(LENGTHSCALES, NOISES)))
    kernels = Kernel(grid[:, 0], jnp.zeros(len(grid)), grid[:, 1])
    points = Points(jnp.zeros(len(places)), places)
    return gaussian_process.fit_best(kernels, points, observed, has_score)


def normal_scores(scores: Array) -> tuple[Array, Array]:
    """Return the trials' shares of won comparisons as normal quantiles, and who has a score, `[N]`.

    Two trials are compared in the last phase for which both have a score; each also draws with
    itself.

    Args:
      scores: `[N, P]`, NaN where there is none.
    """
    has_score = ~jnp.isnan(scores)
    # Settings that diverge are bad, however good their agents were before.
    has_diverged = jnp.isneginf(scores).any(axis=1, keepdims=True)
    scores = jnp.where(has_score & has_diverged, -jnp.inf, scores)

    def compare(won: Array, phase: tuple[Array, Array]) -> tuple[Array, None]:
        score, is_known = phase
        now = (score[:, None] > score) + 0.5 * (score[:, None] == score)
        return jnp.where(is_known[:, None] & is_known, now, won), None

    unknown = jnp.full((len(scores), len(scores)), jnp.nan)
    won, _ = jax.lax.scan(compare, unknown, (scores.T, has_score.T))
    return ndtri(jnp.nanmean(won, axis=1)), has_score.any(1)


def choose_in_turn(
    posterior: Posterior,
    highest: Array,
    planned: Array,
    candidates: Array,
    is_unknown: Array,
    is_chosen: Array,
) -> Array:
    """Return the places of trials `[N, d]`; those of chosen ones are the best candidates.

    Args:
      highest: the score to exceed.
      planned: `[N, d]`: the places of the other trials.
      candidates: `[n, d]`, each taken once.
      is_unknown: `[N]` bool: trials that have begun or begin, and have no score; each counts as an
        observation at its mean from its turn on.
      is_chosen: `[N]` bool: those of them that take a candidate, if one is left.
    """
    number = len(planned)
    places = jnp.concatenate([planned, candidates])
    points = Points(jnp.zeros(len(places)), places)
    means, covariances = gaussian_process.predict_jointly(posterior, points)
    turns = jnp.argsort(~is_unknown, stable=True)

    def step(turn: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        covariances, is_free, taken = state
        trial = turns[turn]
        gains = log_expected_improvement(means - highest, jnp.diagonal(covariances))
        chosen = jnp.argmax(jnp.where(is_free, gains, -jnp.inf))
        place = jnp.where(is_chosen[trial] & is_free.any(), chosen, trial)
        covariances = gaussian_process.expect_jointly(posterior.kernel, covariances, place)
        return covariances, is_free.at[place].set(False), taken.at[trial].set(place)

    start = (covariances, jnp.arange(len(places)) >= number, jnp.arange(number))
    return places[jax.lax.fori_loop(0, is_unknown.sum(), step, start)[2]]


def log_expected_improvement(gain: Array, variance: Array) -> Array:
    """Return the logarithm of the expected improvement, since single precision has no such numbers.

    Args:
      gain: the mean of the score minus the score to exceed.
      variance: that of the score.
    """
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-12))
    z = gain / deviation
    near, far = jnp.maximum(z, -8.0), jnp.minimum(z, -8.0)
    root = math.sqrt(2 * math.pi)
    log_near = jnp.log(jnp.exp(-(near**2) / 2) / root + near * ndtr(near))
    # The sum of the two terms loses its digits where it tends to phi(z) / z^2 (1 - 3 / z^2).
    log_far = -(far**2) / 2 - jnp.log(root * far**2) + jnp.log1p(-3 / far**2)
    return jnp.log(deviation) + jnp.where(z > -8, log_near, log_far)
