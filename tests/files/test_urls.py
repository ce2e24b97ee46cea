"""Secrets of URLs: no spelling of a URL brings its password into a file or a message."""

import sys

import pytest

from jaxrl.files import urls
from jaxrl.files.urls import parse_url, redact_command, redact_url

pytestmark = pytest.mark.smoke

SECRET = "s3kr1t"
URLS = {
    "plain": f"postgresql://me:{SECRET}@host/db",
    "no user": f"redis://:{SECRET}@host/0",
    "slash": f"postgresql://me:{SECRET}/{SECRET}@host/db",
    "space": f"postgresql://me:{SECRET} {SECRET}@host/db",
    "at": f"postgresql://me:x@{SECRET}@host/db",
    "at and slash": f"postgresql://me:x@{SECRET}/{SECRET} {SECRET}@host/db",
    "colon": f"postgresql://me:x:{SECRET}@host/db",
    "question mark": f"postgresql://me:x?{SECRET}@host/db",
    "percent": f"postgresql://me:%40{SECRET}%2F@host/db",
    "newline": f"postgresql://me:x\n{SECRET}@host/db",
    "no host": f"postgresql://me:{SECRET}/db",
    "bad port": f"postgresql://me:x@host:{SECRET}/db",
    "query": f"postgresql://me@host/db?password={SECRET}",
    "query with at": f"postgresql://host:5432/db?password=x@{SECRET}",
    "query, upper case": f"postgresql://me@host/db?PassWord={SECRET}",
    "query, unknown": f"postgresql://me@host/db?sslmode=require&anything={SECRET}",
    "query, repeated": f"postgresql://me@host/db?sslkey=a&sslkey={SECRET}",
    "query, encoded": f"postgresql://me@host/db?p%61ssword={SECRET}",
    "query, semicolon": f"mssql://host/db?odbc_connect=PWD={SECRET};UID=me",
    "query, host": f"postgresql://me@/db?host=h;password={SECRET}",
    "sqlite": f"sqlite:///study.db?key={SECRET}",
    "two": f"postgresql://a:x@h/d,postgresql://b:{SECRET}@h/d",
    "driver": f"postgresql+psycopg://me:{SECRET}@host/db",
    "upper case": f"POSTGRESQL://me:{SECRET}@host/db",
}


@pytest.fixture(params=["with sqlalchemy", "without sqlalchemy"])
def _library(request, monkeypatch):
    if request.param == "without sqlalchemy":
        monkeypatch.setitem(sys.modules, "sqlalchemy", None)
        monkeypatch.setitem(sys.modules, "sqlalchemy.engine", None)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("url", URLS.values(), ids=URLS.keys())
def test_no_secret_is_left(url):
    assert SECRET not in redact_url(url)
    for tokens in (
        ["sweep.py", "--storage", url],
        ["sweep.py", f"--storage={url}"],
        ["sweep.py", f"database={url}", "--seed", "1"],
        ["-c", f"sweep(storage='{url}', seed=1)"],
    ):
        assert SECRET not in redact_command(tokens)


@pytest.mark.usefixtures("_library")
def test_a_storage_that_is_no_url_is_not_shown():
    command = redact_command(["sweep.py", "--storage", f"me:{SECRET}@host", "--study", "s"])
    assert SECRET not in command
    assert command.endswith("--study s")


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///runs/study.db",
        "sqlite:////tmp/a b/study.db",
        "postgresql://me@host:5432/db",
        "journal:///study.log",
        "journal:///a@b:c?d.log",
        "http://host:80",
        "nosuchdb://x",
    ],
)
def test_urls_without_secrets_stay_as_they_are(url):
    assert redact_url(url) == url


def test_what_a_resumed_sweep_needs_is_kept():
    url = "postgresql://me:secret@host:5432/db?sslmode=require&sslpassword=x"
    assert redact_url(url) == "postgresql://me@host:5432/db?sslmode=require"
    assert redact_url("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"
    socket = "postgresql://me:secret@/db?host=/run/db"
    assert redact_url(socket) == "postgresql://me@/db?host=%2Frun%2Fdb"
    assert parse_url(url).password == "secret"


@pytest.mark.parametrize("name", ["at", "at and slash", "bad port", "no host", "query with at"])
def test_ambiguous_urls_are_refused_without_their_secret(name):
    with pytest.raises(ValueError, match=r"cannot be read as a URL; write .* as %40") as caught:
        parse_url(URLS[name])
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_the_short_name_of_postgresql_is_refused():
    with pytest.raises(ValueError, match="begins with postgresql://, not postgres://"):
        parse_url("postgres://me@host/db")


def test_without_sqlalchemy_more_is_removed(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy.engine", None)
    assert redact_url("postgresql://me:pw@host/db") == f"postgresql://{urls.HIDDEN}"
