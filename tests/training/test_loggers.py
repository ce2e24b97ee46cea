"""Sinks: each holds the rows that it was given, also after a kill."""

import importlib
import struct
import time
from typing import Any

import pytest

from jaxrl.training.loggers import JsonlSink, ProgressBar, TensorBoardSink, read_jsonl


def test_the_cut_last_line_of_a_killed_run_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\n{"update": 2}\n{"upda')
    sink = JsonlSink(path, resume_from=1)
    sink.write({"update": 2.0})
    sink.close()
    assert read_jsonl(path) == [{"update": 1}, {"update": 2.0}]


def test_tensorboard_can_read_each_row_at_once(tmp_path):
    event_pb2: Any = importlib.import_module("tensorboardX.proto.event_pb2")
    sink = TensorBoardSink(tmp_path, resume_from=20)
    sink.write({"update": 1, "steps": 30, "loss": 3.0})
    (path,) = tmp_path.iterdir()
    data, events = path.read_bytes(), []
    while data:  # records of a length, its checksum, the event, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    sink.close()
    version, begin, scalar = events
    assert version.file_version == "brain.Event:2"
    assert (begin.step, begin.session_log.status) == (21, event_pb2.SessionLog.START)
    (value,) = scalar.summary.value
    assert (scalar.step, value.tag, value.simple_value) == (30, "loss", 3.0)
    assert abs(scalar.wall_time - time.time()) < 100


@pytest.mark.parametrize("columns", [80, 130])
def test_the_progress_bar_fits_its_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    bar = ProgressBar(2_000_000, visible=True)
    bar.say("evaluating")
    bar.advance(1_999_360, 1658.0, -20.2, "25.9 trainings/s, simulators: wait 45%, idle 20%")
    bar.close()
    line = capsys.readouterr().err
    assert "…" not in line
    assert "evaluating" in line
    assert "1,999,360/2,000,000 steps 1,658 steps/s return -20.2" in line
    assert ("25.9 trainings/s, simulators: wait 45%, idle 20%" in line) == (columns == 130)
