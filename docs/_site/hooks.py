"""Hooks of MkDocs: pages may link to files outside docs/, and formulas become MathML.

Links are written as GitHub and editors follow them, relative to the file that holds them. The site
gets the linked files of the repository too, and the links their places there.
"""

import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/ that pages link to, and those that these link to."""
    docs = Path(config.docs_dir)
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    while pages:
        page = pages.pop()
        for target in linked_files(page):
            place = place_of(target, docs)
            if files.get_file_from_path(place) is None and docs not in target.parents:
                files.append(File.generated(config, place, abs_src_path=str(target)))
                pages += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to the places that files have in the site."""
    source, docs = Path(page.file.abs_src_path), Path(config.docs_dir)
    own_folder = Path(page.file.src_uri).parent

    def move(match: re.Match[str]) -> str:
        target = resolve(source, match[1])
        if not target.is_file():  # MkDocs reports it
            return match[1]
        return Path(os.path.relpath(place_of(target, docs), own_folder)).as_posix()

    return LINK.sub(move, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Replace the formulas of pymdownx.arithmatex by MathML, which browsers draw themselves."""

    def draw(match: re.Match[str]) -> str:
        formula = match[3].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(formula, display="inline" if match[2] == "(" else "block")

    return FORMULA.sub(draw, html)


def linked_files(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to."""
    targets = (resolve(page, match[1]) for match in LINK.finditer(page.read_text()))
    return [target for target in targets if target.is_file()]


def resolve(page: Path, link: str) -> Path:
    """Return the file that a link of a page leads to."""
    return Path(os.path.normpath(page.parent / link))


def place_of(target: Path, docs: Path) -> str:
    """Return the place of a file in the site: below docs/, or else as in the repository."""
    root = docs if docs in target.parents else docs.parent
    return target.relative_to(root).as_posix()
