"""One algorithm a file, each written like its paper."""

from jaxrl.algos import a2c, dqn, impala, ppo, pqn, r2d2

ALGORITHMS = {
    "a2c": a2c.a2c,
    "dqn": dqn.dqn,
    "impala": impala.impala,
    "ppo": ppo.ppo,
    "pqn": pqn.pqn,
    "r2d2": r2d2.r2d2,
}
"""jaxrl's algorithms by the name that manifests and the command line give them."""

__all__ = ["ALGORITHMS", "a2c", "dqn", "impala", "ppo", "pqn", "r2d2"]
