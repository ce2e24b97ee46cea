"""A worker process of a sweep of the toy algorithm.

Its command is `python -m sweep_worker URL DIRECTORY NAME SCHEDULER [AGENTS_DIR]`. It waits for a
file `go` beside its directory, so that all workers begin together.
"""

import sys
import time
from pathlib import Path

from sweep_runs import SPACE, UPDATES
from toy_algorithm import ToyConfig, toy

from jaxrl.tuning import ASHA, HyperBand, HyperTrick, Phase, SuccessiveHalving, sweep
from jaxrl.tuning.sweeps.lanes import Lanes

SEED, NUM_TRIALS, NUM_PHASES = 5, 30, 4
SLOW = "c"
SECONDS_PER_PHASE = {"a": 0.2, "b": 0.2, SLOW: 0.8, "d": 0.3}
"""If any worker waited for the slowest one, it would show."""
HEARTBEAT = 5
SCHEDULERS = {
    "hypertrick": HyperTrick(NUM_TRIALS, NUM_PHASES),
    "halving": SuccessiveHalving(18, 9),
    "hyperband": HyperBand(9),
    "asha": ASHA(18, 9),
}


def main(url, directory, worker, scheduler, agents_dir=None):
    """Work on the study at the URL until it ends; resume if the directory holds a sweep."""
    train = Lanes._train_group

    def train_slowly(*arguments):
        time.sleep(SECONDS_PER_PHASE[worker])
        return train(*arguments)

    setattr(Lanes, "_train_group", train_slowly)  # noqa: B010 (its type is another one)
    Path(directory).with_suffix(".ready").touch()
    while not (Path(directory).parent / "go").exists():
        time.sleep(0.02)
    sweep(
        toy(),
        ToyConfig(),
        SPACE,
        SCHEDULERS[scheduler],
        num_lanes=2,
        phase=Phase(UPDATES),
        run_dir=directory,
        seed=SEED,
        storage=url,
        study_name="toy_algorithm",
        strategy="vmap",
        worker=worker,
        agents_dir=agents_dir,
        heartbeat_seconds=HEARTBEAT,
        checkpoint_seconds=3.0,
        progress_bar=False,
        resume=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
