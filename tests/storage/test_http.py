"""Objects of HTTP servers: every answer is compared with what was asked for, and some are asked for again."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import tensorwire
from tensorwire.storage import again, http_objects, remote
from tensorwire.storage.inputs import open_input
from tensorwire.storage.locations import locate
from tensorwire.storage.remote import RemotePath
from tests.support.web import Answer, Request, Web, serving

CONTENT = bytes(range(256)) * 1000
FIRST, NBYTES = 100_000, 500  # behind what is read of each object at first
CHANGED = "the object changed while it was read: 'http"


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(a=CONTENT) as server:
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that would have been made."""
    found: list[float] = []

    async def note(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(again, "_sleep", note)
    return found


def read(web: Web, alter: Callable[[Answer], object], **options: Any) -> bytes:
    """A range of the object, whose answer is altered; the object is opened before."""
    with open_input(locate(f"{web.url}/a", options)) as file:
        web.alter = lambda request, answer: alter(answer) if request.start else None
        return file.read(FIRST, NBYTES)


def with_headers(**headers: str | None) -> Callable[[Answer], object]:
    """Alter them; None removes one."""

    def alter(answer: Answer) -> None:
        for name, value in headers.items():
            if value is None:
                del answer.headers[name.replace("_", "-")]
            else:
                answer.headers[name.replace("_", "-")] = value

    return alter


def with_status(status: int, **headers: str) -> Callable[[Answer], object]:
    def alter(answer: Answer) -> None:
        answer.status, answer.body = status, b""
        answer.headers = {"Content-Length": "0", **{name.replace("_", "-"): value for name, value in headers.items()}}

    return alter


def another_range(answer: Answer) -> None:
    answer.body = CONTENT[96_000:96_500]
    answer.headers["Content-Range"] = f"bytes 96000-96499/{len(CONTENT)}"


def all_of_it(answer: Answer) -> None:
    answer.status, answer.body = 200, CONTENT
    answer.headers.update({"Content-Length": str(len(CONTENT))})
    del answer.headers["Content-Range"]


def another_object(answer: Answer) -> None:
    """As large as the range, and whole."""
    all_of_it(answer)
    answer.body, answer.headers["Content-Length"] = bytes(NBYTES), str(NBYTES)


def no_more_tag(answer: Answer) -> None:
    with_headers(ETag=None, Last_Modified="Sun, 06 Nov 1994 08:49:38 GMT")(answer)


@pytest.mark.parametrize(
    ("alter", "text"),
    [
        (another_range, r"the server sent bytes 96000-96499 where bytes 100000-100499 were asked for: 'http"),
        (with_headers(Content_Range="bytes 100000-100500/256000"), "sent bytes 100000-100500 where"),
        (with_headers(Content_Range="pages 1-2/3"), "sent Content-Range: pages 1-2/3 where bytes 100000-100499 were"),
        (with_headers(Content_Range="bytes 100000-100499/256001"), CHANGED),
        (with_headers(ETag='"two"'), CHANGED),
        (with_headers(ETag='W/"two"'), CHANGED),
        (no_more_tag, CHANGED),
        (another_object, CHANGED),
        (with_status(416, Content_Range="bytes */500"), CHANGED),
        (with_status(416), "the server answers 416"),
        (with_status(204), "expected 500 bytes from 100000 on, got the status 204 from the server"),
        (all_of_it, "got 256000 bytes from the server, which knows no ranges: download it first"),
        (with_headers(Content_Encoding="gzip"), r"packs what it sends \(Content-Encoding: gzip\).*download it first"),
        (
            with_headers(Content_Range=None, Content_Type="multipart/byteranges; boundary=x"),
            "expected 500 bytes from 100000 on, got several ranges in one answer",
        ),
    ],
)
def test_another_answer_than_was_asked_for_is_an_error(web: Web, alter: Callable[[Answer], object], text: str) -> None:
    with pytest.raises(OSError, match=text):
        read(web, alter)


@pytest.mark.parametrize(
    "alter",
    [
        with_headers(),
        with_headers(ETag='W/"one"'),
        with_headers(ETag=None, Last_Modified=None),
        with_headers(Last_Modified="Sun, 06 Nov 1994 08:49:38 GMT"),  # of another machine of the server, by the tag
        with_headers(Content_Range=None),
        with_headers(Content_Range="Bytes 100000-100499/*"),
        with_headers(Content_Encoding="identity"),
    ],
)
def test_an_answer_that_says_less_is_none(web: Web, alter: Callable[[Answer], object]) -> None:
    assert read(web, alter) == CONTENT[FIRST : FIRST + NBYTES]
    assert {request.encodings for request in web.requests} == {"identity"}


def test_a_small_object_may_come_whole() -> None:
    """From a server that knows no ranges."""
    with serving(a=b"1234567") as web:

        def alter(request: Request, answer: Answer) -> None:
            if request.start is not None:
                answer.status = 200
                del answer.headers["Content-Range"]

        web.alter = alter
        with open_input(locate(f"{web.url}/a")) as file:
            assert file.read(2, 3) == b"345"


def test_an_empty_range_is_not_asked_for() -> None:
    with serving(a=b"") as web:
        assert RemotePath.of(f"{web.url}/a").fetch([(0, 0), (7, 7)]) == [b"", b""]
        with open_input(locate(f"{web.url}/a")) as file:
            assert (file.nbytes, file.read(0, 10)) == (0, b"")
        assert all(request.method == "HEAD" for request in web.requests)


def test_answers_are_compared_with_each_other_too(web: Web) -> None:
    """Where the opening told nothing but the size."""
    tags = iter(['"one"', '"one"', '"two"'])

    def alter(request: Request, answer: Answer) -> None:
        del answer.headers["ETag"], answer.headers["Last-Modified"]
        if request.start:
            answer.headers["ETag"] = next(tags)

    web.alter = alter
    with open_input(locate(f"{web.url}/a")) as file:
        assert file.read(FIRST, 5) + file.read(FIRST + 5, 5) == CONTENT[FIRST : FIRST + 10]
        with pytest.raises(OSError, match=CHANGED):
            file.read(FIRST, 5)


@pytest.mark.parametrize("other", [False, True])
def test_a_redirect_is_followed_and_its_answer_compared(web: Web, other: bool) -> None:
    web.pages["/b"] = CONTENT[other:]
    with open_input(locate(f"{web.url}/a")) as file:
        web.alter = lambda request, answer: with_status(302, Location="/b")(answer) if request.path == "/a" else None
        if other:
            with pytest.raises(OSError, match=CHANGED):
                file.read(FIRST, NBYTES)
        else:
            assert file.read(FIRST, NBYTES) == CONTENT[FIRST : FIRST + NBYTES]


def test_a_signed_url_that_has_expired_is_no_missing_file() -> None:
    with serving(a=save({"w": np.zeros((200, 100), np.float32)})) as web:

        def expire(request: Request, answer: Answer) -> None:
            if len(web.requests) > 3:
                with_status(403)(answer)

        web.alter = expire
        with pytest.raises(PermissionError, match="403 Forbidden; look at your credentials"):
            tensorwire.load_file(f"{web.url}/a?X-Amz-Signature=x")


def failing(times: int, alter: Callable[[Answer], object]) -> Callable[[Answer], object]:
    """Alter so many answers, and no more."""
    left = iter(range(times))
    return lambda answer: alter(answer) if next(left, None) is not None else None


def cut(answer: Answer) -> None:
    answer.body = (answer.body or b"")[:100]


def cut_without_length(answer: Answer) -> None:
    del answer.headers["Content-Length"]
    answer.body = (answer.body or b"")[:100]


@pytest.mark.parametrize(
    "alter",
    [*(with_status(status) for status in (408, 425, 429, 500, 502, 503, 504)), cut, cut_without_length],
)
def test_what_may_go_well_the_next_time_is_asked_again(
    web: Web, alter: Callable[[Answer], object], pauses: list[float]
) -> None:
    """With growing pauses."""
    assert read(web, failing(4, alter)) == CONTENT[FIRST : FIRST + NBYTES]
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    pauses.clear()
    with pytest.raises(OSError, match=r"each time it was asked: 'http|the connection broke: |got 100: it was cut"):
        read(web, failing(5, alter))
    assert pauses == [0.5, 1.0, 2.0, 4.0]


def test_a_connection_that_breaks_is_made_anew(web: Web, pauses: list[float]) -> None:
    """aiohttp repeats a request by itself where the connection was an old one, without a pause."""

    def drop(answer: Answer) -> None:
        answer.status = None

    assert read(web, failing(4, drop)) == CONTENT[FIRST : FIRST + NBYTES]
    assert pauses == [0.5, 1.0, 2.0, 4.0][: len(pauses)]
    with pytest.raises(ConnectionResetError, match="the connection broke: "):
        read(web, drop)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 501])
def test_what_stays_so_is_not_asked_again(web: Web, status: int, pauses: list[float]) -> None:
    kind = {401: PermissionError, 403: PermissionError, 404: FileNotFoundError, 410: FileNotFoundError}
    with pytest.raises(kind.get(status, OSError), match=f"the server answers {status}"):
        read(web, with_status(status))
    assert not pauses


@pytest.mark.parametrize(
    ("said", "pause"),
    [
        ("7", 7.0),
        ("0", 0.5),
        ("86400", 30.0),
        ("Sun, 06 Nov 1994 08:49:49 GMT", 12.0),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0.5),
        ("soon", 0.5),
        ("-1", 0.5),
        ("9" * 400, 30.0),
    ],
)
def test_a_pause_is_as_long_as_the_server_asks(web: Web, said: str, pause: float, pauses: list[float]) -> None:
    """Up to half a minute. A date is compared with the server's own clock."""
    busy = with_status(503, Retry_After=said, Date="Sun, 06 Nov 1994 08:49:37 GMT")
    assert read(web, failing(1, busy)) == CONTENT[FIRST : FIRST + NBYTES]
    assert pauses == [pause]


@pytest.mark.parametrize(("status", "number"), [(403, 0), (405, 0), (503, 1)])
def test_a_server_may_refuse_to_tell_without_sending(web: Web, status: int, number: int, pauses: list[float]) -> None:
    web.alter = lambda request, answer: with_status(status)(answer) if request.method == "HEAD" else None
    with open_input(locate(f"{web.url}/a")) as file:
        assert file.nbytes == len(CONTENT)
    assert [request.method for request in web.requests] == ["HEAD", "GET"]
    assert len(pauses) == number


def test_a_server_that_is_busy_all_the_time_is_not_a_missing_file(web: Web, pauses: list[float]) -> None:
    web.alter = lambda request, answer: with_status(503)(answer)
    with pytest.raises(OSError, match="the server answers 503 Service Unavailable, each time it was asked: 'http"):
        locate(f"{web.url}/a").exists()
    assert len(web.requests) == 5


@pytest.mark.parametrize("own", [False, True])
def test_a_silent_server_is_asked_twice(web: Web, own: bool, pauses: list[float]) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    timeout = aiohttp.ClientTimeout(sock_read=0.05) if own else 0.05

    def silent(answer: Answer) -> None:
        answer.body = None

    with open_input(locate(f"{web.url}/a")) as file:
        file.path.store.kwargs["timeout"] = timeout
        web.requests.clear()
        web.alter = lambda request, answer: silent(answer)
        try:
            with pytest.raises(TimeoutError, match=r"the server sent nothing within .* s: 'http"):
                file.read(FIRST, NBYTES)
        finally:
            del file.path.store.kwargs["timeout"]
    assert (len(web.requests), pauses) == (2, [0.5])


def test_how_long_the_next_bytes_may_take() -> None:
    """At most so long as a server may be silent, and 10,000 bytes a second on the average behind that."""
    assert http_objects.seconds_left(10.0, 0.0, 0) == 10.0
    assert http_objects.seconds_left(10.0, 4.0, 0) == 6.0
    assert http_objects.seconds_left(10.0, 10.5, 10_000) == 0.5
    assert http_objects.seconds_left(10.0, 1000.0, 10_000) == 0.0
    assert http_objects.seconds_left(10.0, 1.0, 1 << 30) == 10.0
    assert http_objects.seconds_left(None, 1000.0, 0) is None


def test_ctrl_c_ends_a_pause(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    async def interrupted(seconds: float) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            # A signal between CPython's look at its flags and the system's wait for a lock does not end that wait:
            # the next one does, which here means nothing by itself.
            while True:
                signal.pthread_kill(main, signal.SIGUSR1)
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(again, "_sleep", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with pytest.raises(KeyboardInterrupt):
            read(web, with_status(503))
        assert ended.wait(60), "nothing goes on behind it"
    finally:
        signal.signal(signal.SIGUSR1, before)


PAGE = b"""<HTML><a class="x" href="a.safetensors">a</a> <a href='sub/'>sub</a> <A HREF="/dir/b">b</A>
<a href="../">up</a> <a href="?C=N;O=D">by name</a> <a href="#top">top</a>
<a href="/elsewhere">no</a> <a name="here">no</a> <a href="https://example.org/c">no</a>"""


def test_a_page_lists_what_it_has_links_to() -> None:
    with serving(dir_=PAGE, dir=PAGE, dir_sub=b'<a href="d">d</a>', dir_b=b"12") as web:
        web.alter = lambda request, answer: answer.headers.update({"Content-Type": "text/html"})
        folder = locate(f"{web.url}/dir")
        assert sorted(place.name for place in folder.iterdir()) == ["a.safetensors", "b", "sub"]
        assert sorted(place.path_in(folder) for place in folder.files()) == ["a.safetensors", "b", "sub/d"]
        assert [place.path_in(folder) for place in folder.glob("*.safetensors")] == ["a.safetensors"]
        assert [place.path_in(folder) for place in folder.glob("*/?")] == ["sub/d"]
        assert next(place for place in folder.iterdir() if place.name == "b").stat().st_size == 2


LISTED = pytest.mark.parametrize("name", ["iterdir", "files", "glob"])


def listed(web: Web, name: str) -> list[Any]:
    folder = locate(f"{web.url}/dir")
    return list(folder.glob("*") if name == "glob" else getattr(folder, name)())


@LISTED
def test_an_endless_page_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_objects, "MAX_PAGE_NBYTES", 1000)
    with serving(dir=b"A" * 1001) as web, pytest.raises(OSError, match=r"a page of at most 1,000 bytes as listing"):
        listed(web, name)


@LISTED
def test_a_folder_has_so_many_objects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_ENTRIES", 2)
    page = b"".join(b'<a href="%d">' % number for number in range(3))
    with serving(dir=page) as web:
        with pytest.raises(OSError, match="expected at most 2 objects in a folder, got more: 'http"):
            listed(web, name)
        web.pages["/dir"] = page[: len(page) // 3 * 2]
        assert len(listed(web, name)) == 2


def test_folders_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_MAX_DEPTH", 3)
    with serving(dir=b'<a href="more/">') as web:
        web.alter = lambda request, answer: answer.__init__(200, {}, web.pages["/dir"])  # type: ignore[misc]
        with pytest.raises(OSError, match="expected folders in at most 3 others"):
            listed(web, "files")


@pytest.mark.parametrize("piece", [b"<a ", b"<a href", b'<a href="', b"href=", b"https://"])
def test_a_page_of_beginnings_is_read_in_linear_time(piece: bytes) -> None:
    """A search that goes on to the end of the page from each of them would take hours."""
    with serving(dir=piece * (1 << 20)) as web:
        assert len(listed(web, "iterdir")) < 2
