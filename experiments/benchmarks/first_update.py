"""Time from the start of a process to the end of the first update, in one fresh process.

    python experiments/benchmarks/first_update.py --env-id CartPole-v1

It prints one line of JSON: the seconds of each phase of `jaxrl.run`, and the numbers of programs
that were asked of the persistent compilation cache and found there. `--started` is the Unix time at
which the parent started the process; without it the interpreter's own start is not counted.
"""

import time

ENTERED = time.time()

import argparse  # noqa: E402
import collections  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402


def main(env_id: str, num_envs: int, started: float) -> dict[str, float]:
    """Return the seconds of all phases, and the numbers of programs."""
    seconds: dict[str, float] = {"interpreter": ENTERED - started}

    def phase(name: str, function: Callable[[], Any]) -> Any:
        began = time.time()
        result = function()
        seconds[name] = time.time() - began
        return result

    phase("imports", lambda: importlib.import_module("jaxrl"))
    import jax
    import jax.numpy as jnp

    import jaxrl
    from jaxrl.training.compilation import enable_compilation_cache, train_chunk

    counts = _count_programs()
    enable_compilation_cache()
    config = jaxrl.PPOConfig(num_steps=128, num_minibatches=4)
    algo = phase("make", lambda: jaxrl.ppo(jaxrl.make(env_id, num_envs=num_envs)))
    state = phase(
        "init", lambda: jax.block_until_ready(jax.jit(algo.init)(config, jax.random.key(0)))
    )
    lowered = phase("trace", lambda: train_chunk.lower(algo, config, state, jnp.int32(1)))
    compiled = phase("compile", lambda: lowered.compile(jaxrl.compiler_options(algo, config)))
    phase("update", lambda: jax.block_until_ready(compiled(config, state, jnp.int32(1))))
    seconds["total"] = time.time() - started
    return seconds | {f"programs_{name}": float(count) for name, count in counts.items()}


def _count_programs() -> collections.Counter[str]:
    import jax

    counts: collections.Counter[str] = collections.Counter(asked=0, hit=0)

    def listen(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            counts["asked"] += 1
        elif event == "/jax/compilation_cache/cache_hits":
            counts["hit"] += 1

    jax.monitoring.register_event_listener(listen)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--started", type=float, default=ENTERED)
    args = parser.parse_args()
    print(json.dumps(main(args.env_id, args.num_envs, args.started)))
