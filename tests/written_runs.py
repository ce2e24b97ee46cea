"""Run directories as `jaxrl.run` writes them, without training."""

import json

from jaxrl.analysis.comparison import group_runs, read_run
from jaxrl.training.run_dir import manifest as manifests

CARTPOLE, PONG, BREAKOUT = "gymnax/CartPole-v1", "envpool/Pong-v5", "envpool/Breakout-v5"


def write_run(
    directory, seed=1, level=20.0, algorithm="ppo", env_id=CARTPOLE, num_rows=5, **config
):
    """Write the directory of a run whose return rises from 0 to `level`, and return its path."""
    directory.mkdir(parents=True)
    manifest = {
        "algorithm": algorithm,
        "env": {"id": env_id, "num_envs": 4, "options": {}},
        "config": {"gamma": 0.99, "hidden_sizes": None} | config,
        "custom_network": False,
        "seed": seed,
        "total_steps": 1000,
        "command": f"python train.py --seed {seed} --note '<b>&'",
        "versions": {"python": "3.12.1", "jax": "0.11.2"},
        "git_commit": "abc",
        "hardware": {"cpu": "Z80", "devices": ["cpu"]},
    }
    rows = [
        {"update": n, "steps": 200 * n + seed, "seconds": n / 2 + seed, "episode_count": 100.0,
         "episode_return": level * n / num_rows}
        for n in range(1, num_rows + 1)
    ]  # fmt: skip
    rows.append({"update": num_rows, "steps": rows[-1]["steps"], "eval_return": level + 1})
    manifests.write(directory, manifest)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "summary.json").write_text(json.dumps({"interrupted": False}))
    return directory


def read_groups(folder):
    """Return the groups of the runs in a folder."""
    return group_runs([read_run(directory) for directory in sorted(folder.iterdir())])
