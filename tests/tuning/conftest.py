"""Fixtures of tests of sweeps."""

import pytest
from shared_studies import open_study


@pytest.fixture
def studies(tmp_path):
    """`studies(worker)`: a worker's view of one study in SQLite, closed at the end."""
    opened = []

    def make(worker, **arguments):
        opened.append(open_study(f"sqlite:///{tmp_path / 's.db'}", worker, **arguments))
        return opened[-1]

    yield make
    for study in opened:
        study.close()
