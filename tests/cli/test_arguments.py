"""What commands share: large integers, name=value, and errors of one line."""

import math
import re
import warnings

import jax
import pytest
import tyro

import jaxrl
from jaxrl import tuning
from jaxrl.cli import doctor
from jaxrl.cli.flags import arguments
from jaxrl.cli.flags.arguments import parse_pairs, set_fields, write_pair
from jaxrl.cli.flags.sweep import parse_distribution

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("text", ["1000000", "1_000_000", "1e6", "0.1e7"])
def test_integers_are_read_as_people_write_them(text):
    number = tyro.cli(arguments.LargeInteger, args=[text])
    assert number == 1_000_000
    assert type(number) is int


@pytest.mark.parametrize("text", ["1.5", "1e-3", "1e400", "nan", "many"])
def test_other_numbers_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(arguments.LargeInteger, args=[text])
    assert f"{text!r} is not a whole number" in capsys.readouterr().err


def test_an_interrupt_ends_with_status_130(capsys):
    with pytest.raises(SystemExit) as ended, arguments.exit_with_message():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_platform_that_is_not_there_is_named(monkeypatch):
    def devices():
        raise AssertionError

    with pytest.raises(AssertionError), arguments.exit_with_message():
        devices()
    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    line = r"^error: JAX finds no device: AssertionError"
    with pytest.raises(SystemExit, match=line), arguments.exit_with_message():
        devices()
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    line = r"^error: JAX_PLATFORMS=cuda, but JAX finds no such device; unset it, or"
    with pytest.raises(SystemExit, match=line), arguments.exit_with_message():
        devices()
    assert "but JAX finds no such device" in doctor.guarded(doctor.devices).found


def test_values_are_python_literals_or_strings():
    texts = ("a=1e-3", "b=(1, 2)", "c=mlp", "d=x=y")
    expected = {"a": 1e-3, "b": (1, 2), "c": "mlp", "d": "x=y"}
    assert arguments.parse_pairs(texts, "--set") == expected


@pytest.mark.parametrize(
    "value",
    ["1", "None", "2.0", "plain text", 1, None, True, [1, "2"], "'", math.inf, -math.inf, "inf"],
)
def test_pairs_are_read_as_they_were_written(value):
    assert parse_pairs([write_pair("x", value)], "--x") == {"x": value}


def test_numbers_may_be_infinite():
    config = set_fields(jaxrl.A2CConfig(max_grad_norm=1.0), ["max_grad_norm=inf"])
    assert config.max_grad_norm == math.inf
    assert parse_distribution("Choice((0.5, inf))").values == (0.5, math.inf)


def test_values_that_are_no_literals_do_not_run_or_crash():
    assert arguments.parse_pairs(["a={[]: 1}", "b=open('x', 'w')"], "--set") == {
        "a": "{[]: 1}",
        "b": "open('x', 'w')",
    }
    deep = "-" * 100_000 + "1"
    with pytest.raises(ValueError, match=r"--set: '----.* is nested too deep"):
        arguments.parse_pairs([f"a={deep}"], "--set")
    with pytest.raises(ValueError, match=r"--space: 'Uniform\(---.* is nested too deep"):
        parse_distribution(f"Uniform({deep}, 1)")


def test_conditional_distributions_hold_another_one():
    text = 'When("core", "lstm", distribution=Choice((64, 128)))'
    expected = tuning.When("core", "lstm", tuning.Choice((64, 128)))
    assert parse_distribution(text) == expected
    with pytest.raises(ValueError, match=r"'print\(1\)' is not a distribution; choose from"):
        parse_distribution('When("core", "lstm", print(1))')
    with pytest.raises(ValueError, match=r"When.distribution must be a distribution, .* got 'x'"):
        parse_distribution('When("core", "lstm", "x")')


def test_old_names_of_fields_are_understood():
    config = arguments.set_fields(jaxrl.PPOConfig(core="gru"), ("sees_last=True",))
    assert config.use_last_action_reward


def test_texts_from_files_cannot_command_the_terminal():
    for text in ("a\x1b[2Jb", "a\x9b2Jb", "a\rb", "a\x08b", "a\u202eb"):
        shown = arguments.printable(text)
        assert shown.isprintable()
        assert shown[0] + shown[-1] == "ab"
    assert arguments.printable("é 界\n\ttwo") == "é 界\n\ttwo"
    with pytest.raises(SystemExit, match=r"^error: no \\x1b\[31m$"), arguments.exit_with_message():
        raise ValueError("no \x1b[31m")


def test_warnings_to_users_are_lines():
    with arguments.exit_with_message():
        shown = warnings.formatwarning("a\x1b", UserWarning, "file.py", 3)
        source = warnings.formatwarning("a", FutureWarning, "file.py", 3)
    assert shown == "warning: a\\x1b\n"
    assert source.startswith("file.py:3: FutureWarning: a\n")
    assert "file.py:3" in warnings.formatwarning("a", UserWarning, "file.py", 3)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PPOConfig.gamma must be 1, got 2", "--gamma must be 1, got 2"),
        ("num_envs must be 1, got 'num_envs'", "--num-envs must be 1, got 'num_envs'"),
        ("num_envs * 2 = 6 is no C.gamma = 5", "--num-envs * 2 = 6 is no --gamma = 5"),
        ("PPOConfig.gamma = 2 must be 1", "--gamma = 2 must be 1"),
        ("num_envs=9 are too many", "--num-envs=9 are too many"),
        ("num_envs of Pong must be 1", "--num-envs of Pong must be 1"),
        ("Other.name must be 1, not gamma", "Other.name must be 1, not gamma"),
        ("name of gamma", "name of gamma"),
        ("x.json: PPOConfig.gamma must be 1", "x.json: PPOConfig.gamma must be 1"),
    ],
)
def test_errors_name_flags(text, shown):
    flags = {"gamma": "--gamma", "num_envs": "--num-envs"}
    with pytest.raises(ValueError, match=f"^{re.escape(shown)}$"), arguments.naming_flags(flags):
        raise ValueError(text)
