"""What the package says of itself: its metadata, its citation and its data files."""

import tomllib
from pathlib import Path

import yaml

import jaxrl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_has_what_its_format_requires():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    for part in (CITATION, *CITATION["references"]):
        assert part["title"]
        assert part["type"]
        assert part["authors"]
        for author in part["authors"]:  # an organization, or a person
            assert set(author) in ({"name"}, {"given-names", "family-names"})
    assert CITATION["message"]
    assert CITATION["abstract"]


def test_the_citation_is_of_this_package():
    assert CITATION["version"] == jaxrl.__version__
    assert CITATION["license"] == PROJECT["project"]["license"]


def test_the_citation_refers_to_the_papers():
    papers = {paper["identifiers"][0]["value"]: paper["url"] for paper in CITATION["references"]}
    numbers = ("1611.06256", "1902.02725", "1910.06591", "1707.06347")
    assert papers == {f"arXiv:{x}": f"https://arxiv.org/abs/{x}" for x in numbers}


def test_every_file_that_is_no_module_is_data_of_the_package():
    package = ROOT / "jaxrl"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["jaxrl"]
    declared = {path for pattern in patterns for path in package.glob(pattern)}
    found = {path for path in package.rglob("*") if path.is_file()}
    assert declared == {path for path in found if path.suffix not in (".py", ".pyc")}


def test_the_versions_of_python_are_the_same_everywhere():
    classifiers = PROJECT["project"]["classifiers"]
    stated = {line.rpartition(" ")[2] for line in classifiers if ":: 3." in line}
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.14"
    assert stated == {"3.11", "3.12", "3.13"}
    assert "Python 3.11 to 3.13" in (ROOT / "README.md").read_text()
