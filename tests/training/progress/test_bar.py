"""The progress bar: it fits its terminal, and a log has its lines."""

import re

import pytest
from waiting import wait_until

from jaxrl.training.progress.bar import ProgressBar, format_clock


@pytest.mark.parametrize("columns", [80, 130])
def test_the_progress_bar_fits_its_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # to Rich, this is a terminal
    bar = ProgressBar(2_000_000, visible=True)
    bar.say("evaluating")
    bar.advance(1_999_360, 1658.0, -20.2, "25.9 trainings/s, simulators: wait 45%, idle 20%")
    bar.close()
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "…" not in line
    assert "evaluating" in line
    assert "1,999,360/2,000,000 steps 1,658 steps/s return -20.2" in line
    assert ("25.9 trainings/s, simulators: wait 45%, idle 20%" in line) == (columns == 130)


@pytest.mark.parametrize("visible", [True, False])
def test_a_log_without_a_terminal_has_a_line_every_so_often(visible, monkeypatch, capsys):
    monkeypatch.setattr("jaxrl.training.progress.bar.LOG_SECONDS", 0.01)
    bar, texts = ProgressBar(2_000, visible), []
    bar.say("training")
    bar.begin_at(400)
    assert "training, 400/2,000 steps" in bar._text()
    bar.advance(500, 250.0, 21.5, "")

    def has_lines():
        texts.append(capsys.readouterr().err)
        return len("".join(texts).splitlines()) >= 3

    if visible:
        wait_until(has_lines, 30)
    bar.close()
    bar.close()
    lines = ("".join(texts) + capsys.readouterr().err).splitlines()
    expected = r"[\d-]{10} [\d:]{8} training, 500/2,000 steps, 250 steps/s, return 21.5.*"
    assert re.fullmatch(expected, lines[-1]) if visible else lines == []


def test_durations_are_shown_as_clocks():
    assert format_clock(3_725.9) == "01:02:05"
