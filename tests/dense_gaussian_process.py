"""Gaussian processes by dense solves in double precision, as a reference."""

import numpy as np

from jaxrl.ops.gaussian_process import JITTER


def dense_covariance(kernel, a, b):
    """Return the covariances of points `[n, 1 + d]`, whose first column is the time."""
    found = np.empty((len(a), len(b)))
    for row, (i, *x) in enumerate(a):
        for column, (j, *y) in enumerate(b):
            square = np.sum((np.array(x) - np.array(y)) ** 2)
            decay = (1 - kernel.forgetting) ** (abs(i - j) / 2)
            found[row, column] = np.exp(-square / (2 * kernel.lengthscale**2)) * decay
    return found


def dense_posterior(kernel, data, observed, new):
    """Return means and standard deviations at new points by solving with the whole covariance."""
    noise = (kernel.noise + JITTER) * np.eye(len(data))
    inverse = np.linalg.inv(dense_covariance(kernel, data, data) + noise)
    cross = dense_covariance(kernel, new, data)
    variance = 1 - np.einsum("nm,mk,nk->n", cross, inverse, cross)
    return cross @ inverse @ observed, np.sqrt(variance)
