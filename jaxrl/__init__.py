"""jaxrl: reinforcement learning as one compiled program.

Environment stepping, inference and learning are one `lax.scan`; a population is a `vmap` of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxrl import networks
from jaxrl.algos.a2c import A2CConfig, a2c
from jaxrl.algos.dqn import DQNConfig, dqn
from jaxrl.algos.impala import ImpalaConfig, impala
from jaxrl.algos.ppo import PPOConfig, ppo
from jaxrl.algos.pqn import PQNConfig, pqn
from jaxrl.algos.r2d2 import R2D2Config, r2d2
from jaxrl.envs import make
from jaxrl.envs.check import check_env
from jaxrl.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.training import population
from jaxrl.training.autotune import autotune
from jaxrl.training.compilation import compiler_options
from jaxrl.training.evaluate import evaluate
from jaxrl.training.loop import StopRun
from jaxrl.training.policy import LoadedPolicy, load_policy
from jaxrl.training.run import RunResult, rerun, run, train
from jaxrl.types import Algorithm, Env, Inputs, Memory, TimeStep, Trajectory

__all__ = [
    "A2CConfig",
    "Algorithm",
    "Box",
    "DQNConfig",
    "Dict",
    "Discrete",
    "Env",
    "ImpalaConfig",
    "Inputs",
    "LoadedPolicy",
    "Memory",
    "MultiDiscrete",
    "PPOConfig",
    "PQNConfig",
    "R2D2Config",
    "RunResult",
    "StopRun",
    "TimeStep",
    "Trajectory",
    "a2c",
    "autotune",
    "check_env",
    "compiler_options",
    "dqn",
    "evaluate",
    "impala",
    "load_policy",
    "make",
    "networks",
    "population",
    "ppo",
    "pqn",
    "r2d2",
    "rerun",
    "run",
    "train",
]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from jaxrl import presets as presets
    from jaxrl import tuning as tuning
else:

    def __getattr__(name: str) -> Any:
        """Import `jaxrl.presets` or `jaxrl.tuning` when it is first used."""
        if name in ("presets", "tuning"):
            return importlib.import_module(f"jaxrl.{name}")
        raise AttributeError(f"module 'jaxrl' has no attribute {name!r}")
