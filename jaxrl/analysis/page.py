"""Pages that are whole by themselves: one HTML file with its tables, pictures and videos in it.

Functions that take `str` cells or contents take HTML; `text` makes it of anything.
"""

from __future__ import annotations

import base64
import html
import os
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_EMBEDDED_BYTES = 8 * 10**6
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --marked: #fb05; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin-top: 1.5rem; }
h1, h2, h3, figcaption { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
.side { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.side { gap: 0 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
th, td { vertical-align: top; }
mark { background: var(--marked); color: inherit; }
small { white-space: nowrap; opacity: .8; }
code { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere; }
td code { display: inline-block; min-width: min(16rem, 60vw); }
figure { margin: 1.5rem 0; }
figcaption { font-size: .9rem; opacity: .8; }
img, video { max-width: 100%; height: auto; border-radius: 6px; }
img { background: white; }
summary { cursor: pointer; margin: .5rem 0; }
"""


def write(path: Path, title: str, parts: Iterable[str]) -> Path:
    """Write a page of these parts, whole or not at all.

    Raises:
      OSError: if `path` cannot be written.
    """
    body = "\n".join([f"<h1>{text(title)}</h1>", *parts])
    temporary = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n{body}\n</body>\n</html>\n",
            encoding="utf-8",
        )
        temporary.replace(path)
    except OSError as error:
        if temporary.is_file():
            temporary.unlink()
        raise OSError(
            f"{path} cannot be written ({error.strerror}); choose another place for the page"
        ) from error
    return path


def table(rows: Iterable[Sequence[str]], label: str, head: Sequence[str] = ()) -> str:
    """Rows of cells, the first of each its head; it scrolls by itself where it is too wide.

    Args:
      label: what a screen reader calls it.
    """
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = [f"<tr>{columns}</tr>"] if head else []
    for first, *others in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    body = "\n".join(lines)
    # What scrolls must take the focus, to be scrolled by keys.
    region = f'class="wide" role="region" aria-label="{text(label)}" tabindex="0"'
    return f"<div {region}><table>\n{body}\n</table></div>"


def folded(summary: str, content: str) -> str:
    """What shows when it is asked for."""
    return f"<details><summary>{text(summary)}</summary>\n{content}\n</details>"


def side_by_side(parts: Iterable[str]) -> str:
    """Parts beside one another where there is room for it."""
    return '<div class="side">\n' + "\n".join(parts) + "\n</div>"


def figure(content: str, caption: str) -> str:
    return f"<figure>\n{content}\n<figcaption>{text(caption)}</figcaption>\n</figure>"


def image(data: bytes, kind: str, alt: str) -> str:
    """A picture of a MIME type such as `image/png`."""
    return f'<img alt="{text(alt)}" src="{_data_uri(data, kind)}">'


def video(path: Path, caption: str, folder: Path) -> str:
    """A figure of an .mp4 or .gif; from 8 MB on a link to it from a page in `folder`."""
    if path.stat().st_size >= _EMBEDDED_BYTES:
        link = urllib.parse.quote(Path(os.path.relpath(path, folder)).as_posix())
        return f'<p><a href="{link}">{text(caption)}</a></p>'
    data = path.read_bytes()
    if path.suffix == ".gif":
        return figure(image(data, "image/gif", caption), caption)
    source = f'src="{_data_uri(data, "video/mp4")}"'
    return figure(f'<video controls playsinline {source} title="{text(caption)}"></video>', caption)


def videos_in(folder: Path) -> list[Path]:
    """The videos of a folder that `video` shows, by name."""
    return sorted(path for suffix in ("mp4", "gif") for path in folder.glob(f"*.{suffix}"))


def marked(content: str) -> str:
    """Set off from its neighbours."""
    return f"<mark>{content}</mark>"


def small(content: str) -> str:
    """In the background, on one line."""
    return f"<small>{content}</small>"


def text(value: Any) -> str:
    return html.escape(str(value))


def code(value: Any) -> str:
    return f"<code>{text(value)}</code>"


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
