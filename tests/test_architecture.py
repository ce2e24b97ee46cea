"""The house rules of docs/explanation/architecture.md: floors, folder sizes, plain first lines."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxrl"
FLOORS = (
    {"checks"},
    {"spaces", "files"},
    {"types"},
    {"config", "device_axis"},
    {"ops", "envs.host"},
    {"envs"},
    {"networks"},
    {"rollouts", "replay"},
    {"algos", "distributed"},
    {"presets"},
    {"training.progress"},
    {"training.run_dir"},
    {"training"},
    {"tuning.spaces", "tuning.schedulers"},
    {"tuning"},
    {"tuning.evolution", "tuning.samplers"},
    {"tuning.studies"},
    {"tuning.sweeps"},
    {"analysis"},
    {"cli.flags"},
    {"cli"},
)
"""Folders and root modules from the lowest floor up; an import goes to a lower floor."""
FLOOR_OF = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
SCRIPTS = sorted((ROOT / "experiments").glob("*.py"))
RIDDLES = {"What", "Whether", "How", "Where", "Of", "Who", "When", "Those", "Which"}


def folder_of(module: str) -> str:
    """Return the folder, below `jaxrl`, of a dotted module name without `jaxrl.`."""
    parts = module.split(".")
    while parts and ".".join(parts) not in FLOOR_OF:
        parts.pop()
    return ".".join(parts)


def imported_modules(path: Path) -> set[str]:
    """Return the dotted names, without `jaxrl.`, of jaxrl's modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.removeprefix("jaxrl.") for name in names if name.startswith("jaxrl.")}
    return found


def test_every_folder_and_root_module_has_a_floor():
    root_modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    folders = {".".join(folder.relative_to(PACKAGE).parts) for folder in FOLDERS}
    assert root_modules | folders == set(FLOOR_OF)


def test_imports_between_folders_only_go_down():
    upward = []
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        own = folder_of(module)
        if path.name == "__init__.py" or not own:  # a facade exports what lies on other floors
            continue
        upward += [
            f"{path.relative_to(ROOT)} imports jaxrl.{other}"
            for other in sorted(imported_modules(path))
            if folder_of(other) not in ("", own) and FLOOR_OF[folder_of(other)] >= FLOOR_OF[own]
        ]
    assert not upward


def test_folders_are_small():
    assert len([*PACKAGE.glob("*.py")]) <= 8
    modules = {folder: {*folder.glob("*.py")} - {folder / "__init__.py"} for folder in FOLDERS}
    large = {str(f): len(m) for f, m in modules.items() if len(m) > 12 and f.name != "envs"}
    assert not large


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_says_its_idea_in_one_line(folder):
    tree = ast.parse((folder / "__init__.py").read_text())
    assert "\n" not in (ast.get_docstring(tree) or "\n")


def test_no_script_imports_another():
    names = {script.stem for script in SCRIPTS}
    for script in SCRIPTS:
        for node in ast.walk(ast.parse(script.read_text())):
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not names & set(imported), script


def test_no_docstring_begins_with_a_riddle():
    riddles = []
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first_word = (ast.get_docstring(node) or "-").split()[0]
                if first_word in RIDDLES:
                    riddles.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not riddles
