"""What commands share: large integers, name=value, and errors of one line."""

import pytest
import tyro

import jaxrl
from jaxrl.cli import arguments

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


def test_values_are_python_literals_or_strings():
    texts = ("a=1e-3", "b=(1, 2)", "c=mlp", "d=x=y")
    expected = {"a": 1e-3, "b": (1, 2), "c": "mlp", "d": "x=y"}
    assert arguments.parse_pairs(texts, "--set") == expected


def test_old_names_of_fields_and_flags_are_understood():
    words = ["--sees-last", "--no-sees_last", "--gamma=0.9"]
    new = ["--use-last-action-reward", "--no-use-last-action-reward", "--gamma=0.9"]
    assert arguments.with_current_flags(words) == new
    config = arguments.set_fields(jaxrl.PPOConfig(core="gru"), ("sees_last=True",))
    assert config.use_last_action_reward
