"""The notebooks of docs/ run from the first cell to the last, and are kept without outputs."""

import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell["metadata"]
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number_of_pictures"),
    [pytest.param("population", 1, marks=pytest.mark.exhaustive), ("own_environment", 2)],
)
def test_a_notebook_runs(name, number_of_pictures, tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # set by packages that earlier tests import
    (path,) = (path for path in NOTEBOOKS if path.stem == name)
    notebook: Any = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output for output in outputs if "image/png" in output.get("data", ())]
    assert len(pictures) == number_of_pictures
    assert list(tmp_path.iterdir()) == []
