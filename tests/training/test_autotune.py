"""Autotune: the fastest settings, on machines of known speed and of real programs."""

import functools
import itertools
import json
from typing import Any

import jax
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.training.autotune import (
    _cache_key,
    autotune,
    climb,
    lanes_per_second,
    steps_per_second,
)
from jaxrl.training.run_dir import manifest as manifests

KNOBS = {
    "num_envs": [8, 16, 32, 64, 128, 256],
    "num_threads": [1, 2, 4, 8, 16, 32],
    "num_pools": [1, 2, 4, 8],
}
START = {"num_envs": 32, "num_threads": 4, "num_pools": 1}


def machine(cores, step, call, infer):
    """Return a machine's speed: threads share cores, pools overlap simulation with inference."""

    def rate(settings):
        envs, threads, pools = (settings[name] for name in KNOBS)
        at_work = min(threads, envs / pools, cores)
        simulation = envs * step / at_work * (1 + 0.02 * max(threads - cores, 0))
        inference = pools * call + envs * infer
        bubble = min(simulation, inference) / pools
        return envs / (max(simulation, inference) + bubble)

    return rate


MACHINES = {
    "laptop": machine(cores=4, step=1e-3, call=3e-4, infer=2e-4),
    "slow simulator": machine(cores=16, step=1e-2, call=3e-4, infer=1e-5),
    "fast simulator": machine(cores=16, step=1e-5, call=3e-4, infer=1e-5),
    "one core": machine(cores=1, step=1e-3, call=1e-3, infer=1e-3),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_climb_comes_near_the_best_of_the_grid(name):
    asked = []

    def rate(settings):
        asked.append(tuple(settings.values()))
        return MACHINES[name](settings)

    grid = [dict(zip(KNOBS, values, strict=True)) for values in itertools.product(*KNOBS.values())]
    found = climb(rate, KNOBS, [START, START, START | {"num_pools": 2}])
    assert len(asked) == len(set(asked)) == len(found.trials) <= len(grid) / 5
    assert rate(found.best) >= 0.95 * max(map(rate, grid))
    assert found.best in [trial.settings for trial in found.trials]


def test_the_number_of_measurements_is_bounded():
    found = climb(lambda settings: settings["num_envs"], KNOBS, [START], max_trials=2)
    assert len(found.trials) == 2


def test_small_gains_are_noise():
    found = climb(lambda settings: 100 + settings["num_threads"] / 100, KNOBS, [START])
    assert found.best == START


def build_pools(num_pools, num_envs=4):
    env = jaxrl.make("envpool/CartPole-v1", num_envs, num_threads=1, num_pools=num_pools)
    return toy(env), ToyConfig()


def test_a_program_is_measured_once_on_a_machine(tmp_path):
    seen, cache = [], tmp_path / "tuned" / "x.json"
    arguments = build_pools, {"num_pools": [1, 2, 3]}, [{"num_pools": 2}]
    options = {"seconds": 0.01, "cache": cache, "report": seen.append}
    found = autotune(*arguments, **options)
    assert found.best["num_pools"] in (1, 2)
    assert list(found.trials) == seen
    rates = {trial.settings["num_pools"]: trial.steps_per_second for trial in seen}
    assert rates[3] == 0  # four environments cannot be split over three pools
    assert all(rates[number] > 0 for number in rates if number != 3)
    assert autotune(*arguments, **options) == found
    assert list(found.trials) == seen


@pytest.mark.slow
def test_lanes_are_measured_together():
    found = autotune(
        lambda lanes: (toy(), jaxrl.population.stack(ToyConfig(), lanes)),
        {"lanes": [1, 2]},
        [{"lanes": 2}],
        rate=lanes_per_second,
        seconds=0.01,
        cache=False,
    )
    assert [trial.settings for trial in found.trials] == [{"lanes": 2}, {"lanes": 1}]
    assert all(trial.steps_per_second > 0 for trial in found.trials)


def test_only_settings_without_enough_memory_are_left_out():
    def find(message):
        def rate(algo, config, seconds):
            if config.num_steps > 4:
                raise jax.errors.JaxRuntimeError(message)
            return 1.0

        return autotune(*SIZES, rate=rate, cache=False)

    for message in (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 32000000000 bytes.",
        "INTERNAL: Error dispatching computation: Out of memory allocating 32000000000 bytes.",
    ):
        found = find(message)
        assert [trial.steps_per_second for trial in found.trials] == [1.0, 0.0]
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        find("INTERNAL: broken")


def test_the_simulators_of_refused_settings_are_closed():
    def update(config, state):
        raise ValueError("refused")

    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))._replace(update=update)
    before = set(callback._groups)
    with pytest.raises(ValueError, match="refused"):
        steps_per_second(algo, ToyConfig(), 0.01)
    assert set(callback._groups) <= before


SIZES = (
    lambda sizes: (toy(), ToyConfig(num_steps=sum(sizes))), {"sizes": [(4,), (4, 4)]},
    [{"sizes": (4,)}],
)  # fmt: skip


def test_cached_settings_have_the_types_that_were_measured(tmp_path):
    options: dict[str, Any] = {"seconds": 0.01, "cache": tmp_path / "x.json"}
    found = autotune(*SIZES, **options)
    again = autotune(*SIZES, **options, report=lambda trial: pytest.fail("measured again"))
    assert again == found
    assert isinstance(again.best["sizes"], tuple)
    seen = []
    autotune(*SIZES, **options | {"seconds": 0.02}, report=seen.append)  # another question
    assert seen


def test_cached_settings_are_those_of_one_program_on_one_machine(monkeypatch):
    def key(algo=None, config=None, **described):
        with monkeypatch.context() as patch:
            describe = manifests.describe
            patch.setattr(manifests, "describe", lambda *args: describe(*args) | described)
            return _cache_key(algo or toy(), config or ToyConfig(), seconds=1.0)

    keys = [
        key(),
        key(toy(jaxrl.make("CartPole-v1", 3))),
        key(toy(jaxrl.make("Acrobot-v1", 2))),
        key(toy()._replace(network="another")),
        key(toy()._replace(name="another")),
        key(config=ToyConfig(gamma=0.5)),
        key(hardware={"cpu": "another"}),
        key(versions={"jax": "another"}),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_a_cache_that_cannot_be_used_is_ignored(tmp_path):
    cache = tmp_path / "x.json"
    for damaged in ("{", "[]"):
        cache.write_text(damaged)
        assert autotune(*SIZES, seconds=0.01, cache=cache).trials
        assert len(json.loads(cache.read_text())) == 1
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="cannot save the settings found"):
        assert autotune(*SIZES, seconds=0.01, cache=tmp_path / "file" / "x.json").trials


def test_rates_of_the_callers_own_are_not_cached(tmp_path):
    for sign, best in ((1, (4, 4)), (-1, (4,))):
        found = autotune(
            *SIZES,
            cache=tmp_path / "x.json",
            rate=lambda algo, config, seconds, sign=sign: 10 + sign * config.num_steps,
        )
        assert found.best["sizes"] == best


def test_if_all_settings_are_refused_the_error_says_why(tmp_path):
    cache = tmp_path / "x.json"
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    with pytest.raises(ValueError, match=r"not divisible by PPOConfig\.num_minibatches = 7"):
        autotune(
            lambda num_minibatches: (algo, jaxrl.PPOConfig(num_minibatches=num_minibatches)),
            {"num_minibatches": [7, 13]},
            [{"num_minibatches": 7}],
            cache=cache,
        )
    assert not cache.exists()


def test_if_all_starts_are_refused_the_climb_goes_on():
    def build(num_steps):
        if num_steps < 3:
            raise ValueError(f"refused {num_steps}")
        return toy(), ToyConfig(num_steps=num_steps)

    knobs, starts = {"num_steps": [1, 2, 3]}, [{"num_steps": 1}, {"num_steps": 2}]
    assert autotune(build, knobs, starts, seconds=0.01).best == {"num_steps": 3}


def test_settings_and_rates_may_be_of_any_type(tmp_path):
    def build(dtype):
        return toy(), ToyConfig(num_steps=4 if dtype is jax.numpy.float32 else 2)

    dtypes = [jax.numpy.float32, jax.numpy.bfloat16]
    arguments = (build, {"dtype": dtypes}, [{"dtype": dtypes[0]}])
    rate = functools.partial(lambda algo, config, seconds: config.num_steps)
    assert autotune(*arguments, rate=rate).best == {"dtype": dtypes[0]}
    options: dict[str, Any] = {"seconds": 0.01, "cache": tmp_path / "x.json"}
    found = autotune(*arguments, **options)
    seen = []
    assert autotune(*arguments, **options, report=seen.append) == found
    assert not seen


def test_a_start_that_is_no_value_of_its_knob_is_refused():
    with pytest.raises(ValueError, match=r"num_pools = 8, which is not .* that knob, \[1, 2\]"):
        autotune(build_pools, {"num_pools": [1, 2]}, [{"num_pools": 8}], cache=False)
