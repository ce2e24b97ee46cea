"""Train settings of PPO on CartPole with ARLBench, one after another, for `searches.py`.

It runs in an environment with ARLBench but without jaxrl. It reads its request from the standard
input and prints seconds and scores, both as JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time

from arlbench import AutoRLEnv


def main() -> None:
    """Train and evaluate all settings."""
    request = json.load(sys.stdin)
    fixed = {
        "minibatch_size": request["minibatch_size"],
        "n_steps": request["num_steps"],
        "update_epochs": request["num_epochs"],
    }
    began, scores = time.perf_counter(), []
    for seed, setting in enumerate(request["settings"]):
        env = AutoRLEnv(
            {
                "seed": seed,
                "env_framework": "gymnax",
                "env_name": "CartPole-v1",
                "n_envs": request["num_envs"],
                "algorithm": "ppo",
                "cnn_policy": False,
                "n_steps": 1,
                "checkpoint": [],
                "objectives": ["reward_mean"],
                "optimize_objectives": "upper",
                "n_total_timesteps": request["total_steps"],
                "n_eval_steps": 1,
                "n_eval_episodes": request["episodes"],
            }
        )
        env.reset()
        others = dict(env.config_space.get_default_configuration())
        _, objectives, *_ = env.step(others | fixed | setting)
        scores.append(float(objectives["reward_mean"]))
    seconds = time.perf_counter() - began
    versions = {name: importlib.metadata.version(name) for name in ("arlbench", "jax", "gymnax")}
    print(json.dumps({"seconds": seconds, "scores": scores, "versions": versions}))


if __name__ == "__main__":
    main()
