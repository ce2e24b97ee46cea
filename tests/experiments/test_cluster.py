"""Examples for clusters: the container's definition, and the flags of Habitat's trainer."""

import re
import tomllib
from pathlib import Path

import pytest

from jaxrl.cli import train

ROOT = Path(__file__).parents[2]


def test_the_image_is_made_of_existing_files_and_extras():
    text = (ROOT / "experiments" / "cluster" / "jaxrl.def").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in re.findall(r"extras=([a-z,]+)", text):
        assert set(group.split(",")) <= set(extras["optional-dependencies"])
    files = re.search(r"%files\n(.*?)\n\n", text, re.DOTALL)
    assert files is not None
    for line in files[1].splitlines():
        assert (ROOT / line.split()[0]).exists()


@pytest.fixture
def habitat(experiment):
    return experiment("cluster.habitat_flags")


def values(flags):
    """Return the values of flags by name."""
    pairs = re.findall(r"--(\S+)((?: (?!--)\S+)*)", " ".join(flags))
    return {name: value.strip() for name, value in pairs}


ALWAYS = {"clip-value": "", "gae-lambda": "1", "no-anneal": ""}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", {}),
        ("--use-gae", {"gae-lambda": "0.95"}),
        ("--use-gae --tau 0.9", {"gae-lambda": "0.9"}),
        ("--use_gae --gae-lambda=0.8", {"gae-lambda": "0.8"}),
        ("--tau 0.9", {}),
        ("--gamma 0.9", {"gamma": "0.9"}),
        ("--lr 2.5e-4", {"learning-rate": "2.5e-4"}),
        ("--eps 1e-6", {"adam-eps": "1e-6"}),
        ("--clip-param 0.1", {"clip-epsilon": "0.1"}),
        ("--value-loss-coef 0.4", {"value-coef": "0.4"}),
        ("--entropy-coef 0", {"entropy-coef": "0"}),
        ("--max-grad-norm 1", {"max-grad-norm": "1"}),
        ("--ppo-epoch 2", {"num-epochs": "2"}),
        ("--num-mini-batch 2", {"num-minibatches": "2"}),
        ("--num-processes 6", {"num-envs": "6"}),
        ("--num-steps 64", {"num-steps": "64"}),
        (
            "--num-updates 10 --num-steps 64 --num-processes 6",
            {"num-steps": "64", "num-envs": "6", "total-steps": "3840"},
        ),
        ("--hidden-size 512", {"hidden-sizes": "512", "core-size": "512"}),
        ("--seed 3", {"seed": "3"}),
        ("--env-name Pong-v5", {"env-id": "Pong-v5"}),
        ("--log-interval 5", {"log-every": "5"}),
        ("--checkpoint-folder runs/x", {"run-dir": "runs/x"}),
        ("--num_gpu 2", {"devices": "2"}),
    ],
)
def test_each_flag_of_habitat(habitat, argv, expected):
    assert values(habitat.translate(argv.split())) == ALWAYS | expected


def test_the_learning_rate_falls_only_with_its_flag(habitat):
    flags = values(habitat.translate(["--use-linear-lr-decay"]))
    assert "anneal" in flags
    assert "no-anneal" not in flags


def test_checkpoint_intervals_have_no_counterpart(habitat):
    with pytest.warns(UserWarning, match="--checkpoint-interval has no counterpart"):
        flags = habitat.translate(["--checkpoint-interval", "50"])
    assert values(flags) == ALWAYS


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--use-linear-clip-decay", "unknown flag '--use-linear-clip-decay'"),
        ("--lr 1 --sim-gpu-id 0", "unknown flag '--sim-gpu-id'"),
        ("lr 1", "unknown flag 'lr'"),
        ("--lr --use-gae", "--lr takes a value"),
        ("--lr", "--lr takes a value"),
        ("--use-gae=1", "--use-gae takes no value"),
        ("--num-updates 10 --num-steps 5", "--num-updates needs --num-processes"),
        (
            "--num-updates 10 --num-steps 5 --num-processes 1e2",
            "--num-processes takes a whole number, got '1e2'",
        ),
        ("--checkpoint-folder 'my", "a shell would change --checkpoint-folder"),
    ],
)
def test_flags_that_cannot_be_translated_are_named(habitat, argv, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        habitat.translate(argv.split())


def test_jaxrl_train_takes_the_translated_flags(habitat):
    text = """--use-gae --use-linear-lr-decay --tau 0.9 --gamma 0.98 --lr 2.5e-4 --eps 1e-6
        --clip-param 0.15 --value-loss-coef 0.4 --entropy-coef 0.02 --max-grad-norm 0.4
        --ppo-epoch 3 --num-mini-batch 2 --num-processes 6 --num-steps 64 --num-updates 100
        --hidden-size 256 --seed 5 --env-name Acrobot-v1 --log-interval 7
        --checkpoint-folder runs/x --num_gpu 2"""
    flags = habitat.translate(text.split())
    for preset in ("cartpole", "huang"):
        args = train.parse("ppo", ["--preset", preset, *flags])
        assert (args.env_id, args.total_steps, args.num_envs) == ("Acrobot-v1", 38_400, 6)
        assert (args.devices, args.seed, args.run_dir) == (2, 5, Path("runs/x"))
        assert (args.log_every, args.anneal) == (7, True)
        config = args.config
        assert (config.learning_rate, config.gamma, config.gae_lambda) == (2.5e-4, 0.98, 0.9)
        assert (config.clip_epsilon, config.value_coef, config.entropy_coef) == (0.15, 0.4, 0.02)
        assert (config.max_grad_norm, config.adam_eps, config.clip_value) == (0.4, 1e-6, True)
        assert (config.num_steps, config.num_epochs, config.num_minibatches) == (64, 3, 2)
        assert (config.hidden_sizes, config.core_size, config.core) == ((256,), 256, None)
