"""Examples for clusters: the container's definition, and the flags of Habitat's trainer."""

import re
import tomllib
from pathlib import Path

import pytest

from jaxrl import PPOConfig
from jaxrl.cli.flags.train import parse

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
        ("--tau 0.9 --num_gpu 2", {"devices": "2"}),
        ("--hidden-size 512", {"hidden-sizes": "512", "core-size": "512"}),
    ],
)
def test_flags_of_habitat_are_translated(habitat, argv, expected):
    assert values(habitat.translate(argv.split())) == ALWAYS | expected


def test_checkpoint_intervals_have_no_counterpart(habitat):
    with pytest.warns(UserWarning, match="--checkpoint-interval has no counterpart"):
        flags = habitat.translate(["--checkpoint-interval", "50"])
    assert values(flags) == ALWAYS


@pytest.mark.parametrize(
    ("argv", "message"),
    [
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
def test_untranslatable_flags_are_named(habitat, argv, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        habitat.translate(argv.split())


def test_jaxrl_train_takes_the_translated_flags(habitat):
    text = """--use-gae --use-linear-lr-decay --tau 0.9 --gamma 0.98 --lr 2.5e-4 --eps 1e-6
        --clip-param 0.15 --value-loss-coef 0.4 --entropy-coef 0.02 --max-grad-norm 0.4
        --ppo-epoch 3 --num-mini-batch 2 --num-processes 6 --num-steps 64 --num-updates 100
        --hidden-size 256 --seed 5 --env-name Acrobot-v1 --log-interval 7
        --checkpoint-folder runs/x --num_gpu 2"""
    args = parse("ppo", ["--preset", "huang", *habitat.translate(text.split())])
    expected = {
        "env_id": "Acrobot-v1", "total_steps": 38_400, "num_envs": 6, "devices": 2, "seed": 5,
        "run_dir": Path("runs/x"), "log_every": 7, "anneal": True,
    }  # fmt: skip
    assert {name: getattr(args, name) for name in expected} == expected
    assert args.config == PPOConfig(
        learning_rate=2.5e-4, gamma=0.98, gae_lambda=0.9, clip_epsilon=0.15, value_coef=0.4,
        entropy_coef=0.02, max_grad_norm=0.4, adam_eps=1e-6, clip_value=True, num_steps=64,
        num_epochs=3, num_minibatches=2, hidden_sizes=(256,), core_size=256,
    )  # fmt: skip
