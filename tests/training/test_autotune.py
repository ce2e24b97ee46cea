"""Settings found by trials: on costs that are known, and on a real program."""

import itertools
import json
from typing import Any

import jax
import pytest

import jaxrl
from jaxrl.training.autotune import autotune, climb, lanes_per_second

KNOBS = {
    "num_envs": [8, 16, 32, 64, 128, 256],
    "num_threads": [1, 2, 4, 8, 16, 32],
    "num_pools": [1, 2, 4, 8],
}
START = {"num_envs": 32, "num_threads": 4, "num_pools": 1}


def machine(cores, step, call, infer):
    """Steps a second of a machine: threads share cores, pools hide the smaller of two parts."""

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
    rate = MACHINES[name]
    grid = [dict(zip(KNOBS, values, strict=True)) for values in itertools.product(*KNOBS.values())]
    found = climb(rate, KNOBS, [START, START | {"num_pools": 2}])
    assert rate(found.best) >= 0.95 * max(map(rate, grid))
    assert len(found.trials) <= len(grid) / 5
    assert found.best in [trial.settings for trial in found.trials]


def test_nothing_is_measured_twice():
    asked = []
    climb(lambda settings: asked.append(tuple(settings.values())) or 1.0, KNOBS, [START, START])
    assert len(asked) == len(set(asked))


def test_trials_are_bounded():
    found = climb(lambda settings: settings["num_envs"], KNOBS, [START], max_trials=2)
    assert len(found.trials) == 2


def test_small_gains_are_noise():
    found = climb(lambda settings: 100 + settings["num_threads"] / 100, KNOBS, [START])
    assert found.best == START


def build(num_pools, num_envs=4):
    env = jaxrl.make("envpool/CartPole-v1", num_envs, num_threads=1, num_pools=num_pools)
    return jaxrl.a2c(env), jaxrl.A2CConfig(hidden_sizes=(8,))


@pytest.mark.usefixtures("quick_compilation")
def test_a_program_is_measured_once_on_a_machine(tmp_path):
    seen, cache = [], tmp_path / "tuned" / "x.json"
    arguments = build, {"num_pools": [1, 2, 3]}, [{"num_pools": 2}]
    options = {"seconds": 0.05, "cache": cache, "report": seen.append}
    found = autotune(*arguments, **options)
    assert found.best["num_pools"] in (1, 2)
    assert list(found.trials) == seen
    rates = {trial.settings["num_pools"]: trial.steps_per_second for trial in seen}
    assert rates[3] == 0  # four environments cannot be split over three pools
    assert all(rates[number] > 0 for number in rates if number != 3)
    again = autotune(*arguments, **options)
    assert again == found
    assert list(found.trials) == seen
    cache.write_text("{")  # what cannot be read is measured again
    autotune(*arguments, **options)
    assert len(seen) > len(found.trials)
    assert len(json.loads(cache.read_text())) == 1


@pytest.mark.usefixtures("quick_compilation")
def test_lanes_are_found_by_what_all_of_them_do():
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.A2CConfig(hidden_sizes=(8,))
    found = autotune(
        lambda lanes: (algo, jaxrl.population.stack(config, lanes)),
        {"lanes": [1, 2]},
        [{"lanes": 2}],
        rate=lanes_per_second,
        seconds=0.05,
        cache=False,
    )
    assert [trial.settings for trial in found.trials] == [{"lanes": 2}, {"lanes": 1}]
    assert all(trial.steps_per_second > 0 for trial in found.trials)


@pytest.mark.parametrize("message", ["RESOURCE_EXHAUSTED: Out of memory", "INTERNAL: broken"])
def test_what_no_memory_is_left_for_is_refused(message):
    def build(num_envs):
        return jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs)), jaxrl.A2CConfig()

    def rate(algo, config, seconds):
        if algo.env.num_envs > 1:
            raise jax.errors.JaxRuntimeError(message)
        return 1.0

    def find():
        return autotune(build, {"num_envs": [1, 2]}, [{"num_envs": 1}], rate=rate, cache=False)

    if message.startswith("INTERNAL"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
            find()
    else:
        assert [trial.steps_per_second for trial in find().trials] == [1.0, 0.0]


def sized(hidden_sizes, num_minibatches=1):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    fields = {"hidden_sizes": hidden_sizes, "num_minibatches": num_minibatches, "num_steps": 8}
    return algo, jaxrl.PPOConfig(**fields)


@pytest.mark.usefixtures("quick_compilation")
def test_what_is_known_has_the_types_that_were_measured(tmp_path):
    arguments = sized, {"hidden_sizes": [(4,), (8,)]}, [{"hidden_sizes": (8,)}]
    options: dict[str, Any] = {"seconds": 0.01, "cache": tmp_path / "x.json"}
    found = autotune(*arguments, **options)
    again = autotune(*arguments, **options, report=lambda trial: pytest.fail("measured again"))
    assert again == found
    assert isinstance(again.best["hidden_sizes"], tuple)
    seen = []
    autotune(*arguments, **options | {"seconds": 0.02}, report=seen.append)  # another question
    assert seen


@pytest.mark.usefixtures("quick_compilation")
def test_a_cache_that_cannot_be_used_is_no_obstacle(tmp_path):
    arguments = sized, {"hidden_sizes": [(4,)]}, [{"hidden_sizes": (4,)}]
    (tmp_path / "x.json").write_text("[]")
    assert autotune(*arguments, seconds=0.01, cache=tmp_path / "x.json").trials
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="cannot save the settings found"):
        assert autotune(*arguments, seconds=0.01, cache=tmp_path / "file" / "x.json").trials


def test_rates_of_the_callers_own_are_not_cached(tmp_path):
    arguments = sized, {"hidden_sizes": [(4,), (8,)]}, [{"hidden_sizes": (8,)}]
    for sign in (1, -1):
        found = autotune(
            *arguments,
            cache=tmp_path / "x.json",
            rate=lambda algo, config, seconds, sign=sign: 10 + sign * config.hidden_sizes[0],
        )
        assert found.best["hidden_sizes"] == ((8,) if sign == 1 else (4,))


def test_if_all_settings_are_refused_in_the_program_they_say_why(tmp_path):
    cache = tmp_path / "x.json"
    with pytest.raises(ValueError, match=r"not divisible by PPOConfig\.num_minibatches = 7"):
        autotune(
            lambda num_minibatches: sized((4,), num_minibatches),
            {"num_minibatches": [7, 13]},
            [{"num_minibatches": 7}],
            cache=cache,
        )
    assert not cache.exists()


def test_a_start_beside_its_knobs_is_refused_by_name():
    with pytest.raises(ValueError, match=r"num_pools = 8, which is not .* that knob, \[1, 2\]"):
        autotune(build, {"num_pools": [1, 2]}, [{"num_pools": 8}], cache=False)


def test_a_start_that_is_refused_says_why():
    with pytest.raises(ValueError, match="4 environments cannot be split over 3 pools"):
        autotune(build, {"num_pools": [3]}, [{"num_pools": 3}], cache=False)
