"""The page of a hyperparameter sweep: one HTML file with its tables, pictures and videos in it."""

from __future__ import annotations

import base64
import collections
import html
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.tuning.pictures import PICTURES, plot, title
from jaxrl.tuning.scores import Sweep, duration, leaderboard, time_unit

_TABLE_ROWS = 20
_EMBEDDED_BYTES = 8 * 10**6
_STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
th, td { vertical-align: top; }
code { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; }
figcaption { font-size: .9rem; opacity: .8; }
img, video { max-width: 100%; height: auto; border-radius: 6px; }
img { background: white; }
"""


def write_report(sweep: Sweep, run_dir: Path) -> Path:
    """`report.html` of a sweep: one file with its leaderboard, pictures and videos in it.

    The pictures are also left in `plots/`. Videos are those in `videos/`, .mp4 or .gif; from 8 MB
    on they are linked.
    """
    pictures = plot(sweep, run_dir / "plots")
    heading = _text(f"Sweep of {title(sweep)}")
    parts = [
        f"<h1>{heading}</h1>",
        _summary(sweep),
        "<h2>Leaderboard</h2>",
        _leaderboard_tables(sweep),
        "<h2>Pictures</h2>",
        *(_figure(_image(path), PICTURES[path.stem][0]) for path in pictures),
    ]
    folder = run_dir / "videos"
    videos = sorted(path for suffix in ("mp4", "gif") for path in folder.glob(f"*.{suffix}"))
    if videos:
        parts += ["<h2>Videos</h2>", *(_video(path) for path in videos)]
    body = "\n".join(parts)
    path = run_dir / "report.html"
    path.write_text(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n",
        encoding="utf-8",
    )
    return path


def _summary(sweep: Sweep) -> str:
    """What was run, and how it went."""
    seconds, unit = time_unit(duration(sweep))
    counts = collections.Counter(trial["status"] for trial in sweep["trials"])
    phase, occupancy = sweep["phase"], sweep.get("occupancy")
    facts = {
        "algorithm": _text(sweep["algorithm"]),
        "environment": _text(sweep["env"]),
        "scheduler": _code(_call(sweep["scheduler"], "name")),
        "sampler": _text(sweep["sampler"]),
        "phase": _text(f"{phase['length']} {phase['unit']}"),
        "seed": _text(sweep["seed"]),
        "lanes": _text(f"{sweep['lanes']}, {sweep['strategy']}"),
        "trials": _text(", ".join(f"{n} {status}" for status, n in sorted(counts.items()))),
        "wall time": _text(f"{duration(sweep) / seconds:.3g} {unit}"),
        "occupancy": _text("unknown" if occupancy is None else f"{100 * occupancy:.0f} %"),
        "space": "<br>".join(
            _code(f"{name}: {_call(distribution, 'kind')}")
            for name, distribution in sweep["space"].items()
        ),
        "command": _code(sweep["command"]),
    }
    if ranking := leaderboard(sweep):
        best = ranking[0]
        values = ", ".join(f"{name}={_value(value)}" for name, value in best["values"].items())
        found = f"trial {best['trial']}, score {_value(best['best_score'])}"
        facts = {"best": f"<strong>{_text(found)}</strong><br>{_code(values)}"} | facts
    rows = "\n".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
    return f'<div class="wide"><table>\n{rows}\n</table></div>'


def _leaderboard_tables(sweep: Sweep) -> str:
    """The first twenty trials, and the rest folded away."""
    ranking = leaderboard(sweep)
    if not ranking:
        return "<p>No trial has a finite score.</p>"
    first, rest = ranking[:_TABLE_ROWS], ranking[_TABLE_ROWS:]
    tables = _leaderboard_table(first, sweep["space"])
    if rest:
        folded = _leaderboard_table(rest, sweep["space"], start=_TABLE_ROWS + 1)
        tables += f"\n<details><summary>{len(rest)} more</summary>\n{folded}\n</details>"
    return tables


def _leaderboard_table(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, Any], start: int = 1
) -> str:
    head = ["", "trial", "best score", "last score", "phases", "status", *names]
    lines = [f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in head)}</tr>"]
    for rank, row in enumerate(rows, start=start):
        numbers = (row["best_score"], row["last_score"], row["phases"])
        values = [row["values"].get(name, "") for name in names]
        cells = [rank, row["trial"], *numbers, row["status"], *values]
        lines.append(f"<tr>{''.join(f'<td>{_text(_value(cell))}</td>' for cell in cells)}</tr>")
    table = "\n".join(lines)
    return f'<div class="wide"><table>\n{table}\n</table></div>'


def _video(path: Path) -> str:
    if path.stat().st_size >= _EMBEDDED_BYTES:
        link = urllib.parse.quote(f"{path.parent.name}/{path.name}")
        return f'<p><a href="{link}">{_text(path.name)}</a></p>'
    if path.suffix == ".gif":
        return _figure(_image(path), path.name)
    return _figure(f'<video controls src="{_data_uri(path, "video/mp4")}"></video>', path.name)


def _figure(content: str, caption: str) -> str:
    return f"<figure>\n{content}\n<figcaption>{_text(caption)}</figcaption>\n</figure>"


def _image(path: Path) -> str:
    kind = f"image/{path.suffix[1:]}"
    return f'<img alt="{_text(path.stem)}" src="{_data_uri(path, kind)}">'


def _data_uri(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _call(description: Mapping[str, Any], name: str) -> str:
    """As it is written in Python: `LogUniform(low=1e-05, high=0.01)`."""
    arguments = (f"{key}={value}" for key, value in description.items() if key != name)
    return f"{description[name]}({', '.join(arguments)})"


def _value(value: Any) -> str:
    """For people: numbers to six digits."""
    if isinstance(value, float):
        return "diverged" if value == -math.inf else f"{value:.6g}"
    return str(value)


def _text(value: Any) -> str:
    return html.escape(str(value))


def _code(value: Any) -> str:
    return f"<code>{_text(value)}</code>"
