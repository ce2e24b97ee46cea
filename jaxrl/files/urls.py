"""Database URLs: make, parse, and show them without secrets, because manifests are shown to others.

SQLAlchemy owns their grammar. It comes with the extra `tune`; without it, a URL that may have a
secret is hidden as a whole.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HIDDEN = "***"
"""The text in place of a URL whose parts cannot be told apart."""
JOURNAL = "journal:///"
"""A path of a file follows, so the text is no URL."""
HARMLESS = frozenset({
    "application_name", "charset", "check_same_thread", "client_encoding", "connect_timeout",
    "host", "immutable", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "mode", "nolock", "port", "sslmode", "target_session_attrs", "timeout",
    "unix_socket", "uri",
})  # fmt: skip
"""Query fields that are shown; every other one may be a secret."""
_HARMLESS_VALUE = re.compile(r"[\w./:,-]*")
_URL = re.compile(r"[A-Za-z][\w+.-]*://.*", re.DOTALL)
_PLAIN = re.compile(r"[\w+.-]+://([^/:@?]*@)?[^/:@?]*(:\d+)?(/[^@?]*)?", re.DOTALL)
"""URLs that have neither a password nor a query."""
_STORAGE_FLAG = re.compile(r"--?[\w.-]*storage")


def file_url(path: Path) -> str:
    """Return the URL of an SQLite database in a file, whatever characters its path has.

    Raises:
      ImportError: without SQLAlchemy.
    """
    url = _engine().URL.create("sqlite", database=str(path))
    return url.render_as_string(hide_password=False)


def parse_url(url: str) -> Any:
    """Return a database URL as an `sqlalchemy.URL`.

    Raises:
      ImportError: without SQLAlchemy.
      ValueError: if it is no URL, or a character of its password makes its parts ambiguous. The
        message does not have the secret.
    """
    make_url = _engine().make_url
    try:
        parsed = make_url(url)
    except Exception:  # SQLAlchemy's ArgumentError, or the ValueError of a port; both name parts
        parsed = None
    if parsed is None or _is_ambiguous(parsed):
        shown = f"{_scheme(url)}{HIDDEN}" if _scheme(url) or "@" in url else url
        raise ValueError(
            f"the storage {shown} cannot be read as a URL; write it as sqlite:///runs/study.db, or "
            "dialect://user:password@host:port/database, in the user and the password @ as %40, "
            "/ as %2F, : as %3A, ? as %3F, % as %25"
        ) from None
    if parsed.drivername == "postgres":
        raise ValueError("a storage's URL begins with postgresql://, not postgres://")
    return parsed


def storage_file(url: str) -> str | None:
    """Return the path of a storage that is a journal or an SQLite database, None of another.

    Raises:
      ImportError, ValueError: as `parse_url`.
    """
    if url.startswith(JOURNAL):
        return url.removeprefix(JOURNAL)
    parsed = parse_url(url)
    return parsed.database if parsed.drivername.startswith("sqlite") else None


def redact_url(url: str) -> str:
    """Return a URL without its password and without query fields that may be secrets.

    A URL that has none stays as it is; one that cannot be parsed keeps only its scheme.
    """
    if url.startswith(JOURNAL) or _PLAIN.fullmatch(url):
        return url
    try:
        parsed = parse_url(url)
    except (ValueError, ImportError):
        return f"{_scheme(url)}{HIDDEN}"
    query = {name: value for name, value in parsed.query.items() if _is_harmless(name, value)}
    if parsed.password is None and len(query) == len(parsed.query):
        return url
    harmless = parsed.set(query=query)._replace(password=None)
    return harmless.render_as_string(hide_password=False)


def redact_command(tokens: Sequence[str]) -> str:
    """Return a command as text for a shell, its URLs and values of `--storage` redacted."""
    redacted, before = [], ""
    for token in tokens:
        is_storage = _STORAGE_FLAG.fullmatch(before) is not None
        redacted.append(_redact_token(token, is_storage))
        before = token
    return shlex.join(redacted)


def _redact_token(token: str, is_storage: bool) -> str:
    flag, equals, value = token.partition("=")
    if equals and _STORAGE_FLAG.fullmatch(flag):
        return f"{flag}={_redact_token(value, True)}"
    found = _URL.search(token)
    if found is None:
        return HIDDEN if is_storage else token
    return token[: found.start()] + redact_url(found.group())


def _is_harmless(name: str, value: str | tuple[str, ...]) -> bool:
    values = [value] if isinstance(value, str) else value
    return name in HARMLESS and all(_HARMLESS_VALUE.fullmatch(text) for text in values)


def _is_ambiguous(parsed: Any) -> bool:
    """Return whether an `@` or `?` that is not percent-encoded may have split a password."""
    has_authority = parsed.username is not None or parsed.host is not None
    in_path = has_authority and "@" in (parsed.database or "")
    in_password = re.search(r"\?.*=", str(parsed.password or ""), re.DOTALL) is not None
    return in_path or in_password or "@" in (parsed.host or "")


def _engine() -> ModuleType:
    try:
        return importlib.import_module("sqlalchemy.engine")
    except ImportError as error:
        raise ImportError(
            "the storage of a study needs SQLAlchemy: pip install 'jaxrl[tune]'"
        ) from error


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme + separator if separator else ""
