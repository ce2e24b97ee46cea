"""Gaussian processes that forget: regression over points in time, with static shapes.

The covariance of two points is the squared exponential of their inputs times a factor that falls
with the time between them (Bogunovic et al. 2016, arXiv 1601.06650),

    k((x, i), (x', j)) = exp(-|x - x'|^2 / (2 l^2)) (1 - eps)^(|i - j| / 2),

and observations have independent noise. Arrays have a slot for each observation that there may be.
An empty slot has the row and the column of the identity in the covariance, so that it changes
nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from jaxrl.types import Array

JITTER = 1e-4
"""Added to the variance of the noise, so that single precision can factor the covariance."""


class Kernel(NamedTuple):
    """The parameters of the covariance."""

    lengthscale: Array | float
    """l, the distance at which inputs become unlike."""
    forgetting: Array | float
    """eps, from 0 (nothing is forgotten) to below 1."""
    noise: Array | float
    """The variance of the noise; that of the function is 1."""


class Points(NamedTuple):
    """Points in time."""

    time: Array
    """`[n]`."""
    inputs: Array
    """`[n, d]`."""


class Posterior(NamedTuple):
    """A Gaussian process given the observations in m slots."""

    kernel: Kernel
    points: Points
    is_set: Array
    """`[m]` bool: the slots with observations."""
    factor: Array
    """`[m, m]`: the lower Cholesky factor of the observations' covariance."""
    weights: Array
    """`[m]`: the inverse covariance times the observations."""


def covariance(kernel: Kernel, a: Points, b: Points) -> Array:
    """Return the covariances `[n, m]` of the function at points `a` and `b`, without noise."""
    square = ((a.inputs[:, None] - b.inputs[None]) ** 2).sum(-1)
    elapsed = jnp.abs(a.time[:, None] - b.time[None])
    near = jnp.exp(-square / (2 * kernel.lengthscale**2))
    return near * (1 - kernel.forgetting) ** (elapsed / 2)


def fit(kernel: Kernel, points: Points, observed: Array, is_set: Array) -> Posterior:
    """Return the posterior given observations `[m]` of the set slots; their prior mean is 0.

    `fit`, `predict` and `log_likelihood` are algorithm 2.1 of Rasmussen & Williams 2006.
    """
    between = jnp.where(is_set[:, None] & is_set[None], covariance(kernel, points, points), 0)
    own = jnp.where(is_set, 1 + kernel.noise + JITTER, 1)
    slots = jnp.arange(len(is_set))
    factor = jnp.linalg.cholesky(between.at[slots, slots].set(own))
    half = solve_triangular(factor, jnp.where(is_set, observed, 0), lower=True)
    weights = solve_triangular(factor, half, lower=True, trans=1)
    return Posterior(kernel, points, is_set, factor, weights)


def log_likelihood(posterior: Posterior, observed: Array) -> Array:
    """Return the log density of the observations `[m]` that the posterior was given."""
    observed = jnp.where(posterior.is_set, observed, 0)
    log_determinant = 2 * jnp.log(jnp.diagonal(posterior.factor)).sum()
    constant = posterior.is_set.sum() * math.log(2 * math.pi)
    return -0.5 * (observed @ posterior.weights + log_determinant + constant)


def fit_best(kernels: Kernel, points: Points, observed: Array, is_set: Array) -> Posterior:
    """Return the posterior of the one of k kernels that explains the observations best.

    It has the largest likelihood; without observations it is the first. Kernels have leaves `[k]`.
    """

    def density(kernel: Kernel) -> Array:
        return log_likelihood(fit(kernel, points, observed, is_set), observed)

    # One after another: all covariances at once would take k times the memory.
    found = jax.lax.map(density, kernels)
    best = jnp.argmax(jnp.where(jnp.isnan(found), -jnp.inf, found))
    return fit(jax.tree.map(lambda x: x[best], kernels), points, observed, is_set)


def predict(posterior: Posterior, points: Points) -> tuple[Array, Array]:
    """Return means and standard deviations `[n]` of the function at points."""
    cross, explained = _cross(posterior, points)
    variance = 1 - (explained**2).sum(0)
    return cross.T @ posterior.weights, jnp.sqrt(jnp.maximum(variance, 0))


def predict_jointly(posterior: Posterior, points: Points) -> tuple[Array, Array]:
    """Return means `[n]` and covariances `[n, n]` of the function at points."""
    cross, explained = _cross(posterior, points)
    left = covariance(posterior.kernel, points, points) - explained.T @ explained
    return cross.T @ posterior.weights, left


def expect_jointly(kernel: Kernel, covariances: Array, place: Array) -> Array:
    """Return the covariances `[n, n]` after one more observation at one of the n points.

    As in `expect`, its value is its mean, so that all means stay as they are.
    """
    own = jnp.maximum(covariances[place, place], 0) + kernel.noise + JITTER
    return covariances - jnp.outer(covariances[place], covariances[place]) / own


def expect(posterior: Posterior, slot: Array, time: Array, inputs: Array) -> Posterior:
    """Return the posterior with one more observation, whose value is its mean.

    Such an observation leaves all means as they are, and makes the function surer near it
    (Desautels et al. 2014).

    Args:
      slot: an empty one, after which all slots are empty.
      inputs: `[d]`.
    """
    point = Points(time[None], inputs[None])
    row = _cross(posterior, point)[1][:, 0]  # zero from the slot on
    own = 1 + posterior.kernel.noise + JITTER - (row**2).sum()
    # What is left of the variance is at least the noise, but for rounding.
    left = jnp.sqrt(jnp.maximum(own, JITTER))
    return posterior._replace(
        points=jax.tree.map(lambda xs, x: xs.at[slot].set(x[0]), posterior.points, point),
        is_set=posterior.is_set.at[slot].set(True),
        factor=posterior.factor.at[slot].set(row.at[slot].set(left)),
    )


def _cross(posterior: Posterior, points: Points) -> tuple[Array, Array]:
    """Return the covariances `[m, n]` of slots and points, and `factor` into them."""
    cross = covariance(posterior.kernel, posterior.points, points)
    cross = jnp.where(posterior.is_set[:, None], cross, 0)
    return cross, solve_triangular(posterior.factor, cross, lower=True)
