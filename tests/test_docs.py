"""The pages of docs/ name all that there is, and their links lead to files."""

import ast
import dataclasses
import json
import re
import typing
from pathlib import Path

import numpy as np
import pytest
from small_algorithms import CONFIGS, algorithm

import jaxrl
from jaxrl import tuning
from jaxrl.__main__ import COMMANDS
from jaxrl.algos import ALGORITHMS
from jaxrl.cli.compare import CompareArguments
from jaxrl.cli.flags.sweep import SweepArguments
from jaxrl.cli.flags.train import AtariArguments
from jaxrl.cli.play import PlayArguments
from jaxrl.cli.report import ReportArguments
from jaxrl.cli.reproduce import ReproduceArguments
from jaxrl.cli.submit import SubmitArguments
from jaxrl.files import schema
from jaxrl.presets import PRESETS
from jaxrl.training.progress.rows import Progress

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ARGUMENTS = (
    AtariArguments, SweepArguments, SubmitArguments, PlayArguments, ReportArguments,
    CompareArguments,
    ReproduceArguments,
)  # fmt: skip


def names_in_code(page: str) -> set[str]:
    """Return what a page of docs/reference sets in backquotes."""
    return set(re.findall(r"`([^`\n]+)`", (DOCS / "reference" / page).read_text()))


def rows_of_algorithm(name: str, heading: str) -> dict[str, str]:
    """Return the second cells of a section's table in an algorithm's page, by names in the first.

    A first cell may name several, and each of them has the row's second cell.
    """
    text = (DOCS / "algorithms" / f"{name}.md").read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section, re.MULTILINE)
    named = [(field, second) for first, second in rows for field in re.findall("`(.+?)`", first)]
    assert len(named) == len(dict(named)), "a name has two rows"
    return dict(named)


def test_the_site_has_every_page():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {path.relative_to(DOCS).as_posix() for path in PAGES} <= set(listed)
    for page in listed:
        assert (DOCS / page).exists() or (ROOT / page).exists(), page


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", text):
        assert (page.parent / link).is_file(), link


@pytest.mark.parametrize("page", ["minatar", "atari"])
def test_scores_are_those_of_the_records(experiment, page):
    """Rows of both tables are what experiments/score_table.py prints."""
    text = (DOCS / "algorithms" / f"{page}.md").read_text()
    names = re.findall(r"^\| \w+-(?:MinAtar|v5) \|.*/results/([\w-]+)\.json", text, re.MULTILINE)
    assert names
    for name in names:
        record = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text())
        table = experiment("score_table")
        is_peers = "measures" in record
        expected = rows_of_peer(record, table) if is_peers else [table.row(name, record)]
        assert set(expected) <= set(text.splitlines())


def rows_of_peer(record, table):
    """Return a row for each environment in which another library's agents were trained."""
    library, algorithm = record["name"].split("-")[1:]

    def scores(runs, measure):
        return table.summarize(np.array([run[measure] for run in runs]))

    return [
        f"| {env} | *{library}, {algorithm.upper()}, measured* | 10M | {len(runs)} | "
        f"[{scores(runs, 'training_return')}](../../experiments/results/{record['name']}.json) | "
        f"{scores(runs, 'greedy_mean')} |"
        for env in {run["env"]: None for run in record["runs"]}
        if (runs := [run for run in record["runs"] if run["env"] == env])
    ]


def test_every_public_name_has_its_reference():
    text = "".join((DOCS / "reference" / page).read_text() for page in ("api.md", "config.md"))
    described = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    names = {f"jaxrl.{name}" for name in jaxrl.__all__}
    names |= {f"jaxrl.tuning.{name}" for name in tuning.__all__}
    assert described == names
    (members,) = re.findall(
        r"^::: jaxrl\.networks\n.*?members:\n((?: +- \w+\n)+)", text, re.M | re.S
    )
    assert set(re.findall(r"- (\w+)", members)) == set(jaxrl.networks.__all__)


def test_sweeps_take_every_algorithm():
    algorithms = typing.get_type_hints(SweepArguments)["algo"]
    assert set(typing.get_args(algorithms)) == set(ALGORITHMS)


def test_the_imports_of_pure_functions_work():
    imports = re.findall(r"`(from jaxrl[^`]+)`", (DOCS / "reference" / "parts.md").read_text())
    assert imports
    for line in imports:
        exec(line, {})


def test_every_command_and_preset_is_described():
    code = names_in_code("command.md")
    assert {f"jaxrl {name}" for name in COMMANDS} <= code
    for presets in PRESETS.values():
        assert set(presets) <= code
    text = (DOCS / "reference" / "command.md").read_text()
    assert re.findall(r"^\| \[`jaxrl (\w+)`\]", text, re.MULTILINE) == list(COMMANDS)


def test_every_flag_that_is_described_exists():
    algorithms = [make(jaxrl.make("CartPole-v1")) for make in ALGORITHMS.values()]
    classes = [*ARGUMENTS, *(algo.config_class for algo in algorithms)]
    fields = {field.name.replace("_", "-") for cls in classes for field in dataclasses.fields(cls)}
    flags = re.findall(r"(?<=[ `|])--([a-z][a-z-]*)", (DOCS / "reference/command.md").read_text())
    others = {"preset", "config", "list", "help", "no-anneal", "no-clip-value", "no-greedy"}
    assert set(flags) - fields - others == set()


def metrics_of(name):
    """Return what `tests/algos/test_golden.py` finds to be the metrics of an algorithm."""
    return {*json.loads((ROOT / "tests" / "algos" / "golden_metrics.json").read_text())[name]}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_metric_is_described(name):
    assert metrics_of(name) <= names_in_code("metrics.md")


def test_every_field_of_a_file_is_described():
    code = names_in_code("run-directory.md")
    assert {*schema.MANIFEST, *schema.SWEEP, *schema.TRIAL, *schema.ORIGIN} <= code
    totals = Progress().totals()
    assert {*totals, *schema.SUMMARY} <= names_in_code("metrics.md")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_with_its_fields_and_defaults(name):
    rows = rows_of_algorithm(name, "Fields")
    described = {field: ast.literal_eval(default.strip("`")) for field, default in rows.items()}
    fields = dataclasses.fields(algorithm(name).config_class)
    assert described == {field.name: field.default for field in fields}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_algorithm_has_a_page_with_its_metrics(name):
    assert metrics_of(name) == set(rows_of_algorithm(algorithm(name).name, "Metrics"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_functions_of_equations_are_where_the_page_says(name):
    text = (DOCS / "algorithms" / f"{name}.md").read_text()
    places = re.findall(r"((?:`\w+`(?:, )?)+) in `(jaxrl/\S+\.py)`", text)
    assert places
    for functions, path in places:
        source = (ROOT / path).read_text()
        for function in re.findall(r"\w+", functions):
            assert re.search(rf"^(def|class) {function}\b|^    def {function}\b", source, re.M)
