"""URLs that lead nowhere, and servers that refuse: each message has the place and a way out, and nothing secret."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tensorwire
from tensorwire.cli import main
from tensorwire.errors import TruncatedDataError
from tensorwire.storage.inputs import open_input
from tensorwire.storage.locations import locate
from tests.support.ports import free_port
from tests.support.web import Answer, Request, Web, serving

SIZE = 64 << 20


@contextmanager
def large() -> Iterator[tuple[Web, str]]:
    """A server, and the URL of its object with a password and a token."""
    with serving(**{"a.safetensors": bytes(SIZE)}) as web:
        yield web, f"http://somebody:hunter2@127.0.0.1:{web.server_port}/a.safetensors?token=hunter2"


def whole(status: int, length: int | None) -> Callable[[Request, Answer], None]:
    """Answer with all bytes, whatever range is asked for."""

    def alter(request: Request, answer: Answer) -> None:
        if request.method == "GET":
            answer.status, answer.body = status, bytes(SIZE)
            answer.headers = {} if length is None else {"Content-Length": str(length)}

    return alter


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between one try and the next."""
    monkeypatch.setattr("tensorwire.storage.again.PAUSE_SECONDS", (0.0,) * 4)


@pytest.mark.parametrize(("length", "size"), [(SIZE, f"{SIZE} bytes"), (None, "all of it")])
def test_a_server_that_knows_no_ranges_is_not_read_to_the_end(length: int | None, size: str) -> None:
    with large() as (web, url):
        web.alter = whole(200, length)
        with (
            open_input(locate(url)) as file,
            pytest.raises(OSError, match=f"expected 10 bytes from 100000 on, got {size} .* download it first: 'http"),
        ):
            file.read(100_000, 10)
        assert web.sent < SIZE // 4


@pytest.mark.parametrize("length", [SIZE, None])
@pytest.mark.parametrize(("status", "start"), [(206, 100_000), (206, 0), (200, 0)])
def test_a_server_that_sends_more_than_a_range_is_not_read_to_the_end(
    status: int, start: int, length: int | None
) -> None:
    with large() as (web, url):
        web.alter = whole(200, SIZE)
        with open_input(locate(url)) as file:
            web.alter = whole(status, length)
            with pytest.raises((OSError, TruncatedDataError), match=f"bytes from {start} on, got"):
                file.read(start, 10)
        assert web.sent < SIZE // 4


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (401, PermissionError, "401.*look at your credentials for this store: 'http://127.0.0.1"),
        (403, PermissionError, "403.*look at your credentials for this store: 'http://127.0.0.1"),
        (404, FileNotFoundError, "No such file or directory: 'http://127.0.0.1"),
        (503, OSError, "503.*: 'http://127.0.0.1"),
    ],
)
def test_what_a_server_answers(status: int, kind: type[OSError], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with large() as (web, url):
        web.alter = lambda request, answer: answer.__init__(status, {"Content-Length": "0"}, b"")  # type: ignore[misc]
        with pytest.raises(kind, match=text) as caught:
            tensorwire.load_file(url)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
        assert main(["verify", url]) == 1
        said = capsys.readouterr().err
        assert said.count(";") == (status in (401, 403)), "one advice"
        assert "hunter2" not in said


def test_a_server_that_does_not_answer() -> None:
    pytest.importorskip("aiohttp", reason="fsspec's HTTP needs aiohttp")
    place = f"127.0.0.1:{free_port()}/a"
    with pytest.raises(ConnectionRefusedError, match=f"'http://{place}'"):
        tensorwire.load_file(f"http://{place}")


@pytest.mark.parametrize(
    ("url", "kind", "text", "needs"),
    [
        ("s3://", ValueError, r"s3://: expected a URL with a bucket or host, as in 's3://bucket/folder/name'", "s3fs"),
        ("s3:///x", ValueError, r"s3:///x: expected a URL with a bucket or host", "s3fs"),
        ("https://", ValueError, r"https://: expected a URL with a bucket or host", "aiohttp"),
        ("https:///x", ValueError, r"https:///x: expected a URL with a bucket or host", "aiohttp"),
        ("s3:/b/x", ValueError, r"two slashes behind s3:, got one; write 's3://b/x'", ""),
        ("s3:/a:hunter2@b/x", ValueError, r"two slashes behind s3:, got one; write 's3://b/x'", ""),
        ("file:/none/x", ValueError, r"two slashes behind file:, got one; write 'file:///none/x'", ""),
        ("file:///none/x", OSError, "'/none/x'", ""),
        ("foo://a:hunter2@b/x", ValueError, r"foo://b/x: Protocol not known: foo; install its package", ""),
        ("memory://none", OSError, "'memory:///none'", ""),
    ],
)
def test_urls_that_lead_nowhere(
    url: str, kind: type[Exception], text: str, needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python and on the command line."""
    if needs:
        pytest.importorskip(needs, reason=f"this kind of URL needs {needs}")
    with pytest.raises(kind, match=text) as caught:
        tensorwire.load_file(url)
    assert "hunter2" not in str(caught.value)
    assert main(["inspect", url]) == (1 if url.startswith(("memory", "file:///")) else 2)
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert re.search(text, said.err)


def test_a_directory_may_be_called_like_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    assert locate("s3:/x") == tmp_path / "s3:" / "x"
