"""The pictures and the page of a hyperparameter sweep, from what its `sweep.json` holds.

A phase's score is a number, None if no episode ended in it, or "-inf" if the trial diverged.
"""

from __future__ import annotations

import base64
import collections
import colorsys
import html
import itertools
import math
import urllib.parse
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

Sweep = Mapping[str, Any]
"""What `sweep.json` holds."""

_COLORS = "viridis_r"  # the best are dark, and stand out from a white page
_DIVERGED = "tab:red"
_FEWEST_SCORED = 4
_TABLE_ROWS = 20
_EMBEDDED_BYTES = 8 * 10**6


# --- numbers -------------------------------------------------------------------------------------


def leaderboard(sweep: Sweep) -> list[dict[str, Any]]:
    """The trials that have a finite score, best first; equal ones by their number.

    Each has `trial`, `best_score` of all its phases, `last_score` (-inf if it diverged; phases
    without a score are passed over), `phases` it reported, `status` and `values`.
    """
    rows = []
    for trial in sweep["trials"]:
        scores = _scores(trial)
        if np.isfinite(scores).any():
            rows.append(
                {
                    "trial": trial["trial"],
                    "best_score": float(scores[np.isfinite(scores)].max()),
                    "last_score": float(scores[~np.isnan(scores)][-1]),
                    "phases": len(scores),
                    "status": trial["status"],
                    "values": trial["values"],
                }
            )
    return sorted(rows, key=lambda row: (-row["best_score"], row["trial"]))


def best_so_far(sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Seconds at which phases with a finite score ended, and the best score until each."""
    scores = {trial["trial"]: _scores(trial) for trial in sweep["trials"]}
    ends, reported = [], []
    for span in sorted(sweep["spans"], key=lambda span: span["end"]):
        of_trial = scores.get(span["trial"], np.empty(0))
        # A sweep that was interrupted has spans whose phases never reported.
        if span["phase"] < len(of_trial) and math.isfinite(of_trial[span["phase"]]):
            ends.append(span["end"])
            reported.append(of_trial[span["phase"]])
    return np.array(ends, float), np.maximum.accumulate(np.array(reported, float))


def position(distribution: Mapping[str, Any], value: Any) -> float:
    """Where a value is on its hyperparameter's axis, from 0 to 1; NaN if it is not on it.

    Numbers are placed from `low` to `high`, in the logarithm if that is how they are drawn; the
    values of a choice are evenly spaced in their order.
    """
    if distribution["kind"] == "Choice":
        labels = _labels(distribution)
        if _label(value) not in labels:
            return math.nan
        return labels.index(_label(value)) / (len(labels) - 1) if len(labels) > 1 else 0.5
    if value is None:
        return math.nan
    scale = math.log if _is_log(distribution) else float
    low, high = scale(distribution["low"]), scale(distribution["high"])
    # Single precision may put a value just outside its bounds.
    return (scale(_clip(distribution, value)) - low) / (high - low)


def ticks(distribution: Mapping[str, Any], most: int = 12) -> list[tuple[float, str]]:
    """Positions on a hyperparameter's axis, and their labels; of a choice at most `most`."""
    if distribution["kind"] == "Choice":
        labels = _labels(distribution)
        step = -(-len(labels) // most)
        center = 0.5 if len(labels) == 1 else 0.0
        spaces = max(len(labels) - 1, 1)
        return [(center + i / spaces, labels[i]) for i in range(0, len(labels), step)]
    low, high = distribution["low"], distribution["high"]
    if _is_log(distribution):
        numbers = _log_ticks(low, high)
    else:
        locator = MaxNLocator(10, integer=True) if _is_integer(distribution) else MaxNLocator(5)
        numbers = locator.tick_values(low, high)
    return [(position(distribution, x), f"{x:.4g}") for x in numbers if low <= x <= high]


def importances(sweep: Sweep) -> dict[str, float]:
    """How much each hyperparameter decides whether a trial is among the best; the sum is 1.

    PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255) compares how values are distributed among
    the best trials, a tenth but at least five, with how they are among all. It sees ranks alone,
    so trials that only diverged take part, as the worst.

    Raises:
      ValueError: if there are too few scores, or they do not tell hyperparameters apart.
      ImportError: without optuna.
    """
    best = {row["trial"]: row["best_score"] for row in leaderboard(sweep)}
    if len(best) < _FEWEST_SCORED:
        raise ValueError(f"of at least {_FEWEST_SCORED} trials with a score there are {len(best)}")
    if len(set(best.values())) == 1:
        raise ValueError("all trials have the same score")
    try:
        import optuna
    except ImportError as error:
        raise ImportError("optuna is missing; pip install 'jaxrl[tune]'") from error

    diverged = [trial["trial"] for trial in sweep["trials"] if np.isneginf(_scores(trial)).any()]
    best = dict.fromkeys(diverged, -np.finfo(float).max) | best
    distributions = {name: _optuna_distribution(d) for name, d in sweep["space"].items()}
    trials = []
    for trial in sweep["trials"]:
        if trial["trial"] in best:
            params = _optuna_params(sweep["space"], trial["values"])
            trials.append(
                optuna.trial.create_trial(
                    value=best[trial["trial"]],
                    params=params,
                    distributions={name: distributions[name] for name in params},
                )
            )
    share = min(max(0.1, 5 / len(trials)), 0.5)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            # What it warns of, too few or equal trials, ends in the error below.
            warnings.simplefilter("ignore")
            study = optuna.create_study(direction="maximize")
            study.add_trials(trials)
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
            found = optuna.importance.get_param_importances(
                study, evaluator=evaluator, normalize=False
            )
    finally:
        optuna.logging.set_verbosity(verbosity)
    total = sum(found.values())
    if not total > 0:
        raise ValueError("the best trials have the same values as all others")
    shares = {name: float(found.get(name, 0.0) / total) for name in sweep["space"]}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _heights(space: Mapping[str, Any], values: Mapping[str, Any]) -> list[float]:
    """A trial's position on each axis; NaN where it has no value."""
    return [
        position(distribution, values[name]) if name in values else math.nan
        for name, distribution in space.items()
    ]


def _scores(trial: Mapping[str, Any]) -> np.ndarray:
    """`[phases]`: NaN where no episode ended, -inf where the trial diverged."""
    return np.array([math.nan if s is None else float(s) for s in trial["scores"]], float)


def _is_log(distribution: Mapping[str, Any]) -> bool:
    return distribution["kind"] in ("LogUniform", "QLogUniform")


def _clip(distribution: Mapping[str, Any], value: Any) -> Any:
    return min(max(value, distribution["low"]), distribution["high"])


def _label(value: Any) -> str:
    """Of one value of a choice; 1 and 1.0 are the same."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.12g}" if is_number else str(value)


def _labels(distribution: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(_label(value) for value in distribution["values"]))


def _log_ticks(low: float, high: float) -> list[float]:
    """Both bounds, and round numbers between them that leave room for their labels."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1,) if len(decades) > 3 else (1, 2, 5)
    room = 0.08 * math.log(high / low)
    kept = [low, high]
    for digit in digits:  # powers of ten come before others
        for number in (digit * 10.0**decade for decade in decades):
            if low < number < high and min(abs(math.log(number / x)) for x in kept) > room:
                kept.append(number)
    return sorted(kept)


def _optuna_distribution(distribution: Mapping[str, Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if distribution["kind"] == "Choice":
        return CategoricalDistribution(_labels(distribution))
    of_kind = IntDistribution if _is_integer(distribution) else FloatDistribution
    return of_kind(distribution["low"], distribution["high"], log=_is_log(distribution))


def _optuna_params(space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's values that are on their axes."""
    params = {}
    for (name, distribution), height in zip(space.items(), _heights(space, values), strict=True):
        if not math.isnan(height):
            value, is_choice = values[name], distribution["kind"] == "Choice"
            params[name] = _label(value) if is_choice else _clip(distribution, value)
    return params


def _is_integer(distribution: Mapping[str, Any]) -> bool:
    return distribution["kind"] in ("Integer", "QLogUniform")


# --- pictures ------------------------------------------------------------------------------------


def plot(sweep: Sweep, directory: Path) -> list[Path]:
    """Every picture of a sweep, as PNG."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (_, draw) in _PICTURES.items():
        figure = Figure(figsize=(8, 4.6), dpi=120, layout="constrained")
        draw(figure, sweep)
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1])
    return paths


def _draw_phases(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    ranking = leaderboard(sweep)
    axes.set_title(_title(sweep), parse_math=False)
    if not ranking:
        _say(figure, axes, "No trial has a finite score.")
        return
    scores = {trial["trial"]: _scores(trial) for trial in sweep["trials"]}
    finite = {row["trial"]: np.flatnonzero(np.isfinite(scores[row["trial"]])) for row in ranking}
    final = {trial: scores[trial][phases[-1]] for trial, phases in finite.items()}
    colors = _color_scale(list(final.values()))
    for row in reversed(ranking):  # the best on top
        trial, is_best = row["trial"], row is ranking[0]
        axes.plot(
            finite[trial] + 1,
            scores[trial][finite[trial]],
            color=colors.to_rgba(final[trial]),
            linewidth=3 if is_best else 0.8,
            marker="o",  # else a single score would not show
            markersize=5 if is_best else 2,
            label=f"best: trial {trial}" if is_best else None,
        )
    _cross_out(axes, sweep["trials"])
    longest = max(len(of_trial) for of_trial in scores.values())
    axes.margins(y=0.1)  # room for crosses at the bottom
    axes.set_xlim(0.8, max(longest, 2) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    phase = sweep["phase"]
    axes.set(xlabel=f"phase, {phase['length']} {phase['unit']} each", ylabel="score")
    axes.grid(alpha=0.3)
    figure.colorbar(colors, ax=axes, label="final score")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _cross_out(axes: Axes, trials: Sequence[Mapping[str, Any]]) -> None:
    """Where trials were stopped, at their last score, and where they diverged, at the bottom."""
    stopped: list[tuple[int, float]] = []
    sunk: dict[str, list[int]] = {"stopped": [], "diverged": []}
    for trial in trials:
        scores = _scores(trial)
        finite = np.flatnonzero(np.isfinite(scores))
        if np.isneginf(scores).any():
            sunk["diverged"].append(int(np.argmax(np.isneginf(scores))) + 1)
        elif trial["status"] == "stopped" and len(finite):
            stopped.append((int(finite[-1]) + 1, float(scores[finite[-1]])))
        elif trial["status"] == "stopped" and len(scores):
            sunk["stopped"].append(len(scores))
    style: dict[str, Any] = {"marker": "x", "linestyle": "none", "markersize": 5, "zorder": 3}
    if stopped or sunk["stopped"]:
        x, y = zip(*stopped, strict=True) if stopped else ((), ())
        axes.plot(x, y, color="black", label="stopped", **style)
    edge = axes.get_xaxis_transform()
    for name, color, height in (("stopped", "black", 0.06), ("diverged", _DIVERGED, 0.02)):
        if sunk[name]:
            label = name if name == "diverged" else None
            heights = np.full(len(sunk[name]), height)
            axes.plot(sunk[name], heights, color=color, label=label, transform=edge, **style)


def _draw_best(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    axes.set_title("best score so far")
    ends, best = best_so_far(sweep)
    if not len(ends):
        _say(figure, axes, "No phase has ended with a finite score.")
        return
    seconds, unit = _time_unit(_length(sweep))
    until = np.append(ends, max(_length(sweep), ends[-1])) / seconds
    axes.step(until, np.append(best, best[-1]), where="post", linewidth=2)
    is_better = np.diff(best, prepend=-np.inf) > 0
    axes.plot(ends[is_better] / seconds, best[is_better], "o", color="C0", markersize=4)
    axes.set(xlabel=f"wall time, {unit}", ylabel="score")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def _draw_parallel(figure: Figure, sweep: Sweep) -> None:
    space = sweep["space"]
    figure.set_size_inches(max(8.0, 1.7 * (len(space) + 1)), 4.6)
    axes = figure.add_subplot()
    axes.set_title("hyperparameters and best score", pad=24)
    ranking = leaderboard(sweep)
    if not ranking:
        _say(figure, axes, "No trial has a finite score.")
        return
    best = [row["best_score"] for row in ranking]
    colors = _color_scale(best)
    assert colors.norm.vmin is not None
    assert colors.norm.vmax is not None
    score = {"kind": "Uniform", "low": colors.norm.vmin, "high": colors.norm.vmax}
    columns = {name: (space[name], ticks(space[name])) for name in space}
    columns["score"] = (score, ticks(score))

    scored = {row["trial"] for row in ranking}
    diverged = [
        trial
        for trial in sweep["trials"]
        if trial["trial"] not in scored and np.isneginf(_scores(trial)).any()
    ]
    bottom = -0.1
    for trial in diverged:
        heights = [*_heights(space, trial["values"]), bottom]
        axes.plot(heights, color=_DIVERGED, linewidth=0.8, linestyle=":", alpha=0.7)
    for row in reversed(ranking):
        axes.plot(
            [*_heights(space, row["values"]), position(score, row["best_score"])],
            color=colors.to_rgba(row["best_score"]),
            linewidth=3 if row is ranking[0] else 1,
            alpha=1 if row is ranking[0] else 0.7,
            marker="o" if not space else None,
        )
    if diverged:
        columns["score"][1].append((bottom, "diverged"))

    outline = [withStroke(linewidth=3, foreground="white")]
    for x, (name, (_, labels)) in enumerate(columns.items()):
        axes.plot([x, x], [0, 1], color="black", linewidth=1)
        axes.text(x, 1.05, _short(name, 20), ha="center", va="bottom", parse_math=False)
        is_last = x == len(columns) - 1
        for y, label in labels:
            axes.plot([x - 0.02, x + 0.02], [y, y], color="black", linewidth=1)
            axes.text(
                x + (0.04 if is_last else -0.04),
                y,
                _short(label, 14),
                ha="left" if is_last else "right",
                va="center",
                fontsize=8,
                path_effects=outline,
                parse_math=False,
                zorder=3,
            )
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_axis_off()


def _draw_importance(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    axes.set_title("importance for the best score (PED-ANOVA)")
    try:
        shares = importances(sweep)
    except (ValueError, ImportError) as error:
        _say(figure, axes, f"It cannot be computed: {error}.")
        return
    figure.set_size_inches(8, max(2.5, 1.2 + 0.4 * len(shares)))
    bars = axes.barh([_short(name, 30) for name in shares], list(shares.values()), height=0.6)
    axes.bar_label(bars, [f"{100 * share:.0f} %" for share in shares.values()], padding=4)
    axes.invert_yaxis()
    axes.set(xlabel="share", xlim=(0, 1.1 * max(shares.values())))
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _draw_lanes(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    occupancy = sweep.get("occupancy")
    is_known = occupancy is not None and math.isfinite(occupancy)
    axes.set_title(f"lanes: {100 * occupancy:.0f} % occupied" if is_known else "lanes")
    spans = sweep["spans"]
    if not spans:
        _say(figure, axes, "No phase has ended.")
        return
    length = _length(sweep)
    seconds, unit = _time_unit(length)
    num_lanes = max(sweep["lanes"], *(span["lane"] + 1 for span in spans))
    figure.set_size_inches(8, float(np.clip(1.4 + 0.22 * num_lanes, 2.5, 9)))
    is_roomy = num_lanes <= 40
    for lane in {span["lane"] for span in spans}:
        mine = sorted((s for s in spans if s["lane"] == lane), key=lambda s: s["begin"])
        axes.broken_barh(
            [(s["begin"] / seconds, (s["end"] - s["begin"]) / seconds) for s in mine],
            (lane - 0.45, 0.9),
            facecolors=[_trial_color(s["trial"]) for s in mine],
            edgecolor="white",
            linewidth=0.5 if is_roomy else 0,
        )
        for trial, phases in itertools.groupby(mine, key=lambda s: s["trial"]):
            ends = [(s["begin"], s["end"]) for s in phases]
            begin, end = ends[0][0], ends[-1][1]
            if is_roomy and end - begin > 0.03 * length:
                x = (begin + end) / (2 * seconds)
                axes.text(x, lane, str(trial), ha="center", va="center", fontsize=8, color="black")
    axes.set(xlabel=f"wall time, {unit}", ylabel="lane", xlim=(0, length / seconds))
    axes.set_ylim(num_lanes - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


_PICTURES: dict[str, tuple[str, Callable[[Figure, Sweep], None]]] = {
    "phases": (
        "Score by phase, a line for each trial. Crosses mark trials that were stopped or diverged.",
        _draw_phases,
    ),
    "best": ("Best score so far over wall time.", _draw_best),
    "parallel": ("Every trial's hyperparameters and its best score.", _draw_parallel),
    "importance": (
        "How much each hyperparameter decides whether a trial is among the best.",
        _draw_importance,
    ),
    "lanes": (
        "What each lane did: a bar is a phase, its colour and number are the trial's.",
        _draw_lanes,
    ),
}
"""Names of pictures, their captions, and what draws them."""


def _say(figure: Figure, axes: Axes, text: str) -> None:
    """Words in place of a picture."""
    figure.set_size_inches(8, 2)
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, wrap=True)


def _title(sweep: Sweep) -> str:
    count = len(sweep["trials"])
    return f"{sweep['algorithm']} on {sweep['env']}: {count} trial{'' if count == 1 else 's'}"


def _color_scale(scores: Sequence[float]) -> ScalarMappable:
    low, high = min(scores), max(scores)
    if low == high:
        margin = max(abs(low), 1.0) / 2
        low, high = low - margin, high + margin
    return ScalarMappable(Normalize(low, high), matplotlib.colormaps[_COLORS])


def _trial_color(trial: int) -> tuple[float, float, float]:
    """Steps of the golden ratio around the colour circle keep neighbours apart."""
    return colorsys.hls_to_rgb(trial * 0.618034 % 1, 0.72, 0.6)


def _length(sweep: Sweep) -> float:
    """Seconds."""
    return max([sweep.get("seconds") or 0.0, *(span["end"] for span in sweep["spans"])]) or 1.0


def _time_unit(seconds: float) -> tuple[float, str]:
    """The unit that suits such a time: its seconds and its name."""
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 120 else (1.0, "seconds")


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 2]}.."


# --- page ----------------------------------------------------------------------------------------

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
    heading = _text(f"Sweep of {_title(sweep)}")
    parts = [
        f"<h1>{heading}</h1>",
        _summary(sweep),
        "<h2>Leaderboard</h2>",
        _leaderboard_tables(sweep),
        "<h2>Pictures</h2>",
        *(_figure(_image(path), _PICTURES[path.stem][0]) for path in pictures),
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
    seconds, unit = _time_unit(_length(sweep))
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
        "wall time": _text(f"{_length(sweep) / seconds:.3g} {unit}"),
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
