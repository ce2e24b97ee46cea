"""Self-contained HTML pages: one file, rendered from templates, with pictures and videos in it."""

from __future__ import annotations

import base64
import math
import os
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from jaxrl.files.whole import write_whole

_EMBEDDED_BYTES = 8 * 10**6
_VIDEO_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}


class Picture(NamedTuple):
    """A picture of a page."""

    data: bytes
    mime_type: str  # such as image/png
    alt: str
    caption: str


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Render a template of `templates/`, write the page atomically, and return `path`.

    Raises:
      OSError: if `path` cannot be written.
    """
    content = _TEMPLATES.get_template(template).render(folder=path.parent, **values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror}); choose another place for the page"
        ) from error
    return path


def data_uri(data: bytes, mime_type: str) -> str:
    """Return a URI that contains the data itself."""
    return f"data:{mime_type};base64,{base64.b64encode(data).decode()}"


def video_source(path: Path, folder: Path) -> str:
    """Return a video's data URI, or from 8 MB on a link to it from a page in `folder`."""
    if path.stat().st_size < _EMBEDDED_BYTES:
        return data_uri(path.read_bytes(), _VIDEO_TYPES[path.suffix])
    return urllib.parse.quote(Path(os.path.relpath(path, folder)).as_posix())


def format_number(value: Any) -> str:
    """Return a number with four digits, or all digits before the point if there are more.

    Below 0.1 it has three digits after its zeros.
    """
    if not math.isfinite(value):
        return str(value)
    if 0 < abs(value) < 0.1:
        return f"{value:#.3g}"
    before_point = math.floor(math.log10(max(abs(value), 1))) + 1
    return f"{value:,.{max(0, 4 - before_point)}f}"


def format_range(values: list[float]) -> str:
    """Return the smallest and the largest of some numbers, such as `1.000 to 3.000`."""
    low, high = format_number(min(values)), format_number(max(values))
    return low if low == high else f"{low} to {high}"


def count(number: int, noun: str) -> str:
    """Return `1 run`, `2 runs` and so on."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("jaxrl.analysis"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= {
    "count": count,
    "data_uri": data_uri,
    "number": format_number,
    "range": format_range,
    "video_source": video_source,
}
