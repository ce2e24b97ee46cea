"""Sinks: each holds the rows that it was given, also after a kill."""

import importlib
import json
import struct
import time
from typing import Any

import pytest

from jaxrl.files import seal
from jaxrl.training.loggers import JsonlSink, TensorBoardSink, read_jsonl


def test_the_cut_last_line_of_a_killed_run_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\n{"update": 2}\n{"upda')
    sink = JsonlSink(path, resume_from=1)
    sink.write({"update": 2.0})
    sink.close()
    assert read_jsonl(path) == [{"update": 1}, {"update": 2.0}]


DAMAGED = {
    b'{"upd#te": 3}': "lacks update",
    b'{"update": 3': "is no JSON",
    b'{"update": 3, "loss": "\xff"}': "is no UTF-8",
    b"[]": "is no object",
    b"{}": "lacks update",
    b"null": "is no object",
    b'{"update": "3"}': "update is no integer",
    b'{"update": 3.5}': "update is no integer",
    b'{"update": 3, "loss": "high"}': "loss is no number",
    b'{"update": 3, "loss": true}': "loss is no number",
    b'{"update": 3, "loss": [1]}': "loss is no number",
    b'{"update": 3, "steps": 1' + b"0" * 400 + b"}": "steps is no number",
    b'{"update": ' + b"[" * 100_000: "is unreadable: its values are nested",
    b'{"update": 0}': "is out of order",
    b'{"update": 9}': "is out of order",
    b"\x00\x00": "is no JSON",
    b"": "is no JSON",
}


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_row_is_reported_and_the_others_stay(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    good = [{"update": n, "loss": n / 2} for n in (1, 2, 4, 4, 5)]
    lines = [json.dumps(row).encode() for row in good]
    lines.insert(2, line)
    before = b"\n".join(lines) + b"\n"
    path.write_bytes(before)
    with pytest.warns(UserWarning, match=rf"metrics\.jsonl.*line 3 {DAMAGED[line]}"):
        assert read_jsonl(path) == good
    with pytest.warns(UserWarning, match="line 3"):
        sink = JsonlSink(path, resume_from=4)
    sink.write({"update": 5, "loss": 2.5})
    sink.close()
    assert read_jsonl(path) == good  # and nothing is reported
    assert (tmp_path / "metrics.damaged-1.jsonl").read_bytes() == before


# --- rows that a checkpoint has recorded ---------------------------------------------------------


ROWS = [{"update": n, "loss": n / 8} for n in range(1, 6)]
RECORDED = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[:4])


@pytest.fixture
def recorded(tmp_path):
    """A file of five rows, and the record of the first four."""
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for row in ROWS[:4]:
        sink.write(row)
    record = json.loads(json.dumps(sink.record()))
    sink.write(ROWS[4])
    sink.close()
    assert path.read_bytes().startswith(RECORDED)
    return path, record


def test_recorded_rows_stay_byte_for_byte_and_the_record_grows_with_them(recorded):
    path, record = recorded
    with path.open("ab") as file:
        file.write(b'{"update": 6, "lo')
    sink = JsonlSink(path, 4, record)
    assert path.read_bytes() == RECORDED
    assert sink.record() == record
    sink.write(ROWS[4])
    longer = sink.record()
    sink.close()
    again = JsonlSink(path, 5, longer)
    assert again.record() == longer != record
    again.close()
    assert list(path.parent.iterdir()) == [path]


GONE = r"\d+ of the \d+ bytes that the newest checkpoint recorded are gone"
CHANGES = {
    "edited": (lambda data: data.replace(b"0.25", b"0.75"), "lines 1 to 4 are not", [1, 2, 3, 4]),
    "emptied": (lambda data: b"", GONE, []),
    "cut": (lambda data: data[:70], GONE, [1, 2]),
    "zeros": (lambda data: bytes(len(data)), "no line is as the", []),
    "no line 2": (lambda data: RECORDED[:29] + data[57:], "lines 1 to 3 are not", [1, 3, 4]),
    "no row 2": (lambda data: data.replace(b"0.25", b"null"), "line 2 loss is no n", [1, 3, 4]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_are_not_as_recorded_are_told_and_a_copy_is_kept(recorded, change):
    path, record = recorded
    damage, message, updates = CHANGES[change]
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match=rf"metrics\.jsonl: .*{message}.* readable rows stay"):
        sink = JsonlSink(path, 4, record)
    repaired = sink.record()
    sink.close()
    left = read_jsonl(path)
    assert [row["update"] for row in left] == updates
    copies = [copy.read_bytes() for copy in path.parent.glob("*damaged*")]
    assert copies == ([damaged] if damaged else [])
    with pytest.warns(UserWarning, match="recorded"):  # killed before the next checkpoint
        JsonlSink(path, 4, record).close()
    assert read_jsonl(path) == left
    JsonlSink(path, 4, repaired).close()  # and nothing is reported


def test_the_rows_of_another_run_are_refused_and_stay(recorded):
    path, record = recorded
    other = RECORDED.replace(b"0.", b"3.")
    path.write_bytes(other)
    with pytest.raises(ValueError, match=r"metrics\.jsonl: .* another run's.* Copy this run's"):
        JsonlSink(path, 4, record)
    assert path.read_bytes() == other
    path.unlink()
    with pytest.warns(UserWarning, match="are gone"):
        JsonlSink(path, 4, record).close()
    assert path.read_bytes() == b""


def test_readers_verify_rows_by_the_newest_seal_that_is_intact(recorded):
    path, record = recorded
    for update, rows in ((3, None), (4, record), (5, None)):
        folder = path.parent / "checkpoints" / str(update)
        folder.mkdir(parents=True)
        seal.write(folder, {"update": update} | ({"rows": rows} if rows else {}))
    (path.parent / "checkpoints" / "5" / "seal.json").write_text("{}")
    assert read_jsonl(path) == ROWS
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.75"))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: lines 1 to 4 are not all as"):
        assert [row["loss"] for row in read_jsonl(path)] == [0.125, 0.75, 0.375, 0.5, 0.625]


def test_losses_that_are_not_finite_and_the_unfinished_last_line_are_no_damage(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"update": 1, "loss": NaN}\n{"update": 2, "loss": Infinity}\n{"update": \xff'
    )
    assert [row["update"] for row in read_jsonl(path)] == [1, 2]
    path.write_bytes(b'{"update": 1}\n{"update": 2}')
    assert [row["update"] for row in read_jsonl(path)] == [1, 2]


def test_many_damaged_rows_are_one_warning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n" * 50)
    with pytest.warns(UserWarning, match=r"50 damaged lines.* line 20 lacks update; and 30 more"):
        assert read_jsonl(path) == []


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


def test_tensorboard_ignores_what_a_process_wrote_that_saved_nothing(tmp_path):
    TensorBoardSink(tmp_path / "new").close()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "events").touch()
    TensorBoardSink(tmp_path / "old").close()
    new, old = ({*(tmp_path / name).iterdir()} for name in ("new", "old"))
    assert max(x.stat().st_size for x in old) > max(x.stat().st_size for x in new)
