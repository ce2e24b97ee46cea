"""The commands that pages and docstrings show have flags that exist."""

import ast
import functools
import inspect
import itertools
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import tyro
from gymnax import registration

from jaxrl.__main__ import main
from jaxrl.cli.flags.sweep import SweepArguments, make_scheduler, make_space

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("experiments/**/*.md")),
]
SCRIPTS = [*sorted(ROOT.glob("experiments/**/*.py")), *sorted(ROOT.glob("jaxrl/cli/**/*.py"))]
LEFT_OUT = ("...", "NAME", "$(", "benchmarks/")
"""Placeholders, and scripts that set up devices before they parse."""


class ParsedError(Exception):
    """The flags of a command exist; the command itself does not run."""


def shown_lines():
    """Yield the shell lines of pages and docstrings, each with the name of its file."""
    for path in PAGES:
        text = path.read_text()
        for fence in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield from ((path, line) for line in fence.replace("\\\n", " ").splitlines())
        yield from ((path, line) for line in re.findall(r"`(jaxrl train [a-z]\w+ [^`]+)`", text))
    for path in SCRIPTS:
        module = ast.parse(path.read_text())
        classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
        for part in (module, *classes):  # the docstring of a class of flags is the --help
            text = re.sub(r"\\\n\s*", " ", ast.get_docstring(part) or "")
            lines = re.findall(r"^(?:    |(?=jaxrl ))(\S.*)", text, re.MULTILINE)
            yield from ((path, line) for line in lines)


def find_command(line):
    """Return the words of a line from `jaxrl` or a script on, without what follows in the shell."""
    words = shlex.split(line, comments=True)
    for i, word in enumerate(words):
        if (word.startswith("experiments/") and word.endswith(".py")) or Path(word).name == "jaxrl":
            rest = words[i:]
            rest = list(itertools.takewhile(lambda x: x not in ("&", "|", "&&", ">"), rest))
            return ["7" if x.startswith("$") else x for x in rest]  # seeds in loops
    return []


def commands():
    """Return all different commands that are shown."""
    found = {}
    for path, line in shown_lines():
        command = find_command(line) if ("jaxrl" in line or "experiments/" in line) else []
        if len(command) > 1 and not any(text in line for text in LEFT_OUT):
            found.setdefault(tuple(command), path)
    return [pytest.param(c, id=f"{path.stem} {' '.join(c)[:60]}") for c, path in found.items()]


@pytest.fixture
def parse_only(monkeypatch):
    """Let tyro raise `ParsedError` once it has parsed a command's flags."""
    parse = tyro.cli

    def cli(target, *args, **kwargs):
        if inspect.isfunction(target):
            target = functools.wraps(target)(lambda *args, **kwargs: None)
        parsed = parse(target, *args, **kwargs)
        if isinstance(parsed, SweepArguments):
            make_scheduler(parsed)
            make_space(parsed)
        if "default" in kwargs:  # of `jaxrl train`, whose config is checked once it is parsed
            config_class = type(parsed.config).__mro__[1]
            config_class(**vars(parsed.config))
        raise ParsedError

    monkeypatch.setattr(tyro, "cli", cli)


REGISTERED = dict(registration._registry)


@pytest.mark.slow
@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize("command", commands())
def test_a_shown_command_parses(command, monkeypatch):
    name, *flags = command
    if "--config" in flags:
        pytest.skip("it reads a file")
    # A script that names an environment runs more than once in this process.
    monkeypatch.setattr(registration, "_registry", dict(REGISTERED))
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    monkeypatch.setattr(sys, "argv", [name, *flags])
    with pytest.raises((ParsedError, SystemExit)) as end:
        run(name, flags)
    assert isinstance(end.value, ParsedError) or not end.value.code


def run(name, flags):
    """Run a script, or a command of jaxrl, as the shell does."""
    if name.endswith(".py"):
        runpy.run_path(str(ROOT / name), run_name="__main__")
    else:
        sys.exit(main(flags))
