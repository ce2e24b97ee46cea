"""Sweeps as `sweep.json` describes them, without training."""

import math

import numpy as np

SPACE = {
    "learning_rate": {"kind": "LogUniform", "low": 1e-5, "high": 1e-2},
    "num_steps": {"kind": "QLogUniform", "low": 2, "high": 100, "q": 1, "rungs": 10},
    "gamma": {"kind": "Choice", "values": [0.9, 0.99, 0.999]},
    "entropy_cost": {"kind": "Uniform", "low": 0.0, "high": 0.05},
    "num_epochs": {"kind": "Integer", "low": 1, "high": 8},
    "core": {"kind": "Choice", "values": [None, "lstm", True, [64, 64], "$x", "<b>"]},
}


def trial(number, scores, status="completed", **values):
    """Return a trial with its score of each phase, as `sweep.json` holds it."""
    return {"trial": number, "values": values, "scores": scores, "status": status}


def span(lane, number, phase, begin, end):
    """Return the time of one phase of a trial on a lane."""
    return {"lane": lane, "trial": number, "phase": phase, "begin": begin, "end": end}


def sweep_of(trials, spans=(), **changes):
    """Return the content of `sweep.json`, with some of it changed."""
    return {
        "run_id": "a",
        "algorithm": "a2c",
        "env": "envpool/Pong-v5",
        "seed": 1,
        "command": "python experiments/sweep.py",
        "scheduler": {"name": "HyperTrick", "num_trials": len(trials), "num_phases": 10},
        "sampler": "random",
        "lanes": 4,
        "strategy": "vmap",
        "phase": {"length": 2500, "unit": "episodes"},
        "space": SPACE,
        "trials": trials,
        "spans": list(spans),
        "seconds": 60.0,
        "occupancy": 0.93,
    } | changes


def random_sweep(num_trials, lanes=8, seed=0):
    """Return a sweep of trials that score more the nearer their learning rate is to 1e-3."""
    rng = np.random.default_rng(seed)
    trials, spans, free = [], [], np.zeros(lanes)
    for number in range(num_trials):
        values = {
            "learning_rate": float(np.float32(10 ** rng.uniform(-5, -2))),
            "num_steps": int(rng.integers(2, 101)),
            "gamma": SPACE["gamma"]["values"][rng.integers(3)],
            "entropy_cost": float(rng.uniform(0, 0.05)),
            "num_epochs": int(rng.integers(1, 9)),
            "core": SPACE["core"]["values"][rng.integers(6)],
        }
        distance = abs(math.log10(values["learning_rate"]) + 3)
        phases = 10 if distance < 0.7 else int(rng.integers(1, 10))
        curve = 20 * (1 - np.exp(-np.arange(1, phases + 1) / 4)) * (1.5 - distance)
        scores = (curve + rng.normal(size=phases)).tolist()
        status = "completed" if phases == 10 else "stopped"
        if rng.uniform() < 0.3:
            scores[0] = None
        if values["learning_rate"] > 5e-3:
            scores[-1] = "-inf"
        lane = int(np.argmin(free))
        for phase in range(phases):
            end = free[lane] + rng.uniform(200, 400)
            spans.append(span(lane, number, phase, float(free[lane]), float(end)))
            free[lane] = end
        trials.append(trial(number, scores, status, **values))
    busy = sum(s["end"] - s["begin"] for s in spans)
    seconds = float(free.max())
    occupancy = busy / (lanes * seconds)
    return sweep_of(trials, spans, lanes=lanes, seconds=seconds, occupancy=occupancy)
