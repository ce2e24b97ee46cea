"""Hyperparameter searches: `search` in one program, `sweep` from the host."""

from jaxrl.tuning import objectives
from jaxrl.tuning.evolution.check import check_explorer
from jaxrl.tuning.evolution.multi_frequency import MFPBT
from jaxrl.tuning.evolution.pb2 import PB2
from jaxrl.tuning.evolution.pbt import PBT
from jaxrl.tuning.explorers import AdaptiveSampler, Explorer, Generation, Sampler, ancestors
from jaxrl.tuning.finals import Finals
from jaxrl.tuning.objectives import pareto_front
from jaxrl.tuning.program import search
from jaxrl.tuning.samplers.check import check_sampler
from jaxrl.tuning.samplers.expected_improvement import ExpectedImprovement
from jaxrl.tuning.samplers.sobol import Sobol
from jaxrl.tuning.schedulers.check import check_scheduler
from jaxrl.tuning.schedulers.contract import Ledger, Status
from jaxrl.tuning.schedulers.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers.hypertrick import HyperTrick
from jaxrl.tuning.schedulers.random_search import RandomSearch
from jaxrl.tuning.search_result import FinalScores, SearchResult
from jaxrl.tuning.spaces.distributions import Choice, Integer, LogUniform, QLogUniform, Uniform
from jaxrl.tuning.spaces.space import GA3C_SPACE, Space, When, static_names
from jaxrl.tuning.studies.pruner import hypertrick_pruner
from jaxrl.tuning.studies.whole_study import read_study
from jaxrl.tuning.sweeps.api import SweepResult, sweep
from jaxrl.tuning.sweeps.settings import Phase
from jaxrl.tuning.timeline import Span, occupancy, simulate, wall_time
from jaxrl.tuning.trial_start import trial_key, trial_values

__all__ = [
    "ASHA",
    "GA3C_SPACE",
    "MFPBT",
    "PB2",
    "PBT",
    "AdaptiveSampler",
    "Choice",
    "ExpectedImprovement",
    "Explorer",
    "FinalScores",
    "Finals",
    "Generation",
    "HyperBand",
    "HyperTrick",
    "Integer",
    "Ledger",
    "LogUniform",
    "Phase",
    "QLogUniform",
    "RandomSearch",
    "Sampler",
    "SearchResult",
    "Sobol",
    "Space",
    "Span",
    "Status",
    "SuccessiveHalving",
    "SweepResult",
    "Uniform",
    "When",
    "ancestors",
    "check_explorer",
    "check_sampler",
    "check_scheduler",
    "hypertrick_pruner",
    "objectives",
    "occupancy",
    "pareto_front",
    "read_study",
    "search",
    "simulate",
    "static_names",
    "sweep",
    "trial_key",
    "trial_values",
    "wall_time",
]
