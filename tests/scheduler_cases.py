"""Schedulers, phases that last equally long, and random scores, for tests of schedulers."""

import numpy as np

from jaxrl.tuning.schedulers.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers.hypertrick import HyperTrick
from jaxrl.tuning.schedulers.random_search import RandomSearch

ALL = [
    RandomSearch(12, 4),
    HyperTrick(12, 4),
    SuccessiveHalving(12, 4, eta=2),
    HyperBand(4, eta=2),
    ASHA(12, 4, eta=2),
]


def unit_times(scheduler):
    return np.ones((scheduler.num_trials, scheduler.num_phases))


def normal_scores(scheduler, seed):
    shape = (scheduler.num_trials, scheduler.num_phases)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
