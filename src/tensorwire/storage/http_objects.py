"""Objects of HTTP servers, asked for in the session of fsspec's store.

fsspec compares no answer with what was asked for, never asks again, and reads a page to its end, however long. So the
requests are made here.
"""

from __future__ import annotations

import asyncio
import errno
import re
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .again import Again, all_of, patiently, wait_for
from .store_errors import CHANGED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

SILENT_SECONDS = 8.0
"""A server may send nothing for so long, unless `storage_options` has a `timeout`."""

LEAST_RATE = 10_000
"""Bytes per second that a body must come with, on the average, once `SILENT_SECONDS` have passed."""

MAX_PAGE_NBYTES = 16 << 20
"""A page that lists a folder may be so large."""

_WHOLE, _PART, _NO_SUCH_RANGE, _FAILED = 200, 206, 416, 400
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_KINDS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
_PLAIN = ("", "identity", "aws-chunked")
"""Values of Content-Encoding that leave the bytes as they are. Some stores keep the last one by mistake."""

_TAG, _TIME = "ETag", "Last-Modified"
_MARKS = (_TAG, "Content-MD5", "Digest", _TIME)
_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)\s*", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d+)\s*", re.IGNORECASE)
_ANCHOR = re.compile(r"<a\s([^<>]*)>", re.IGNORECASE)
_HREF = re.compile(r"""(?<![^\s"'])href\s*=\s*["']([^"'<>]+)""", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://[-\w@:%+.~#?&/=]+", re.ASCII)


def facts_of(store: Any, url: str) -> dict[str, Any]:
    """What a server says of an object, as fsspec has it.

    Raises:
        FileNotFoundError, PermissionError, OSError: it does not give it, or does not answer.
    """
    from aiohttp import ClientError

    found: dict[str, Any] = {"name": url, "type": "file", "size": None}
    is_first = True

    async def look(method: str) -> None:
        async with _Answer(store, method, url) as answer:
            answer.check_status()
            found.update({name: answer.mark(name) for name in _MARKS if answer.mark(name)})
            found["size"] = answer.nbytes if answer.encoding in _PLAIN else None

    async def ask() -> dict[str, Any]:
        nonlocal is_first
        if is_first:
            is_first = False
            with suppress(OSError, ClientError):  # servers and signed URLs refuse HEAD in many ways
                await look("HEAD")
        if found["size"] is None:
            await look("GET")
        return found

    return wait_for(store, patiently(ask))


def fetch(
    store: Any, url: str, ranges: Sequence[tuple[int, int]], facts: Mapping[str, Any], seen: dict[str, str]
) -> list[bytes]:
    """Ranges of an object, each in a request of its own, at once. A body may have a byte more than was asked for.

    Args:
        facts: what the server has said of the object when it was opened; each answer is compared with that.
        seen: by header, what answers have said of it since.

    Raises:
        OSError: it is another object by now, or the answer has something else than was asked for.
    """

    def ask(start: int, stop: int) -> Callable[[], Awaitable[bytes]]:
        async def part() -> bytes:
            if start == stop:  # which no header can say
                return b""
            async with _Answer(store, "GET", url, {"Range": f"bytes={start}-{stop - 1}"}) as answer:
                answer.check_part(start, stop, facts, seen)
                return await answer.read(stop - start)

        return part

    return wait_for(store, all_of([ask(start, stop) for start, stop in ranges]))


def listing(store: Any, url: str) -> list[str]:
    """The URLs below one that its page has links to; those that end with a slash are folders.

    Raises:
        OSError: the page is too large, or there is none.
    """

    async def ask() -> str:
        async with _Answer(store, "GET", url) as answer:
            answer.check_status()
            if answer.headers.get("Content-Type", "text/html").partition(";")[0].strip() != "text/html":
                return ""
            data = await answer.read(MAX_PAGE_NBYTES, whole=False)
            if len(data) > MAX_PAGE_NBYTES:
                raise OSError(errno.EFBIG, f"expected a page of at most {MAX_PAGE_NBYTES:,} bytes as listing, got more")
            return data.decode(errors="ignore")

    text = wait_for(store, patiently(ask))
    root, below = "{0.scheme}://{0.netloc}".format(urlsplit(url)), url.rstrip("/") + "/"
    links = [href[1] for anchor in _ANCHOR.finditer(text) if (href := _HREF.search(anchor[1]))]
    if store.simple_links:
        links += _ADDRESS.findall(text)
    found: set[str] = set()
    for link in links:
        if link.startswith("/") and len(link) > 1:
            link = root + link
        if not link.startswith(("http://", "https://")):
            if link not in ("..", "../") and link[0] not in "?#":  # other orders of the page, and places in it
                found.add(below + link.lstrip("/"))
        elif link.replace("https", "http", 1).startswith(below.replace("https", "http", 1)):
            found.add(link)
    return sorted(found)


class _Answer:
    """An answer as it comes. Used in an `async with`, which ends the connection unless all of the answer was read."""

    def __init__(self, store: Any, method: str, url: str, headers: Mapping[str, str] | None = None) -> None:
        from aiohttp import ClientTimeout

        self._store, self._method, self._url = store, method, url
        self._options = {**store.kwargs, "raise_for_status": False}
        # aiohttp would unpack a body unasked, and its bytes would not be those of the range.
        self._options["headers"] = {**store.kwargs.get("headers", {}), "Accept-Encoding": "identity", **(headers or {})}
        given = store.kwargs.get("timeout", store.client_kwargs.get("timeout", SILENT_SECONDS))
        self._seconds = float(given) if isinstance(given, (int, float)) else None  # else the caller's object says all
        self._options["timeout"] = given if isinstance(given, ClientTimeout) else ClientTimeout(total=None)

    async def __aenter__(self) -> _Answer:
        session = await self._store.set_session()
        self._began = asyncio.get_running_loop().time()
        request = session.request(self._method, self._store.encode_url(self._url), **self._options)
        self._response = await self._unless_silent(request, 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._response.close()

    async def _unless_silent(self, work: Awaitable[Any], received: int) -> Any:
        """What comes of it; `received`: bytes of the body that are here.

        Raises:
            Again: nothing comes, less than should, or the connection broke.
        """
        import aiohttp

        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(work, seconds_left(self._seconds, loop.time() - self._began, received))
        except asyncio.TimeoutError:
            spent = f"{loop.time() - self._began:.1f} s"
            text = f"the server sent {received:,} bytes in {spent}, and then nothing or too little"
            text = text if received else f"the server sent nothing within {spent}"
            raise Again(TimeoutError(errno.ETIMEDOUT, text), was_silent=True) from None
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL):
            raise  # nothing listens there, or there is no such host
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            text = str(error) or type(error).__name__
            raise Again(ConnectionResetError(errno.ECONNRESET, f"the connection broke: {text}")) from None

    @property
    def status(self) -> int:
        found: int = self._response.status
        return found

    @property
    def headers(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self._response.headers
        return found

    @property
    def nbytes(self) -> int | None:
        """What the server says of the size of the body."""
        found: int | None = self._response.content_length
        return found

    @property
    def encoding(self) -> str:
        return self.headers.get("Content-Encoding", "").strip().lower()

    def mark(self, name: str) -> str | None:
        """A header that tells one content from another. A tag stays the same when a server calls it weak."""
        found = self.headers.get(name)
        return found.removeprefix("W/") if found is not None and name == _TAG else found

    def check_status(self) -> None:
        """Raise what stands against the answer, `Again` if it may be another one the next time."""
        if self.status < _FAILED:
            return
        text = f"the server answers {self.status} {self._response.reason or ''}".rstrip()
        if self.status in _BUSY:
            raise Again(OSError(errno.EIO, f"{text}, each time it was asked"), seconds=self._asked_pause())
        raise OSError(_KINDS.get(self.status, errno.EIO), text)

    def _asked_pause(self) -> float:
        """Seconds; 0 if the server asks for none that can be read."""
        text = self.headers.get("Retry-After", "").strip()
        try:
            if text.isascii() and text.isdigit():
                return float(text)
            then, now = (parsedate_to_datetime(each) for each in (text, self.headers.get("Date", "")))
            return (then - now).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return 0.0

    def check_part(self, start: int, stop: int, facts: Mapping[str, Any], seen: dict[str, str]) -> None:
        """Raise an error unless the body is this range of the object that was opened."""
        size, changed = facts.get("size"), OSError(errno.EBUSY, CHANGED)
        if self.status == _NO_SUCH_RANGE:
            total = _UNSATISFIED.fullmatch(self.headers.get("Content-Range", ""))
            if total is not None and size is not None and int(total[1]) != size:
                raise changed
        self.check_status()
        if self.encoding not in _PLAIN:
            text = f"the server packs what it sends (Content-Encoding: {self.encoding:.40}), which leaves no ranges"
            raise OSError(errno.ENOTSUP, f"{text}: download it first")
        said = self.headers.get("Content-Range")
        part = None if said is None else _RANGE.fullmatch(said.strip())
        if part is not None and part[3] != "*" and size is not None and int(part[3]) != size:
            raise changed
        for name in (_TAG, _TIME):
            mark = self.mark(name)
            expected = facts.get(name) or (seen.setdefault(name, mark) if mark else None)
            if mark and expected:
                if mark != expected:
                    raise changed
                break  # a time may differ from server to server, where a tag is the same
        self._check_range(start, stop, size, said, part)

    def _check_range(self, start: int, stop: int, size: int | None, said: str | None, part: Any) -> None:
        nbytes, length = stop - start, self.nbytes
        expected = f"expected {nbytes} bytes from {start} on"
        if self.status == _WHOLE and said is None:
            if size is not None and length not in (None, size):
                raise OSError(errno.EBUSY, CHANGED)
            if (start, stop) != (0, size):
                got = "all of it" if length is None else f"{length} bytes"
                text = f"{expected}, got {got} from the server, which knows no ranges: download it first"
                raise OSError(errno.ENOTSUP, text)
        elif self.status not in (_WHOLE, _PART):
            raise OSError(errno.EIO, f"{expected}, got the status {self.status} from the server")
        elif said is not None and (part is None or (int(part[1]), int(part[2])) != (start, stop - 1)):
            got = f"Content-Range: {said:.60}" if part is None else f"bytes {part[1]}-{part[2]}"
            raise OSError(errno.EIO, f"the server sent {got} where bytes {start}-{stop - 1} were asked for")
        elif said is None and self.headers.get("Content-Type", "").strip().lower().startswith("multipart/byteranges"):
            raise OSError(errno.EIO, f"{expected}, got several ranges in one answer")
        if length not in (None, nbytes):
            raise OSError(errno.EIO, f"{expected}, got {length} bytes from the server")

    async def read(self, nbytes: int, *, whole: bool = True) -> bytes:
        """The body, and of a longer one a byte more than that.

        Raises:
            Again: the connection broke, or was too slow; if `whole`, also if the body is shorter.
        """
        body, parts, received = self._response.content, [], 0
        while received <= nbytes and (part := await self._unless_silent(body.readany(), received)):
            parts.append(part)
            received += len(part)
        if whole and received < nbytes:
            raise Again(OSError(errno.EIO, f"expected a body of {nbytes} bytes, got {received}: it was cut"))
        return b"".join(parts)[: nbytes + 1]


def seconds_left(silent: float | None, spent: float, received: int) -> float | None:
    """How long the next bytes of an answer may take.

    Args:
        silent: how long the server may send nothing, in seconds; None if the caller has set limits of its own.
        spent: seconds since the request.
        received: bytes of the body so far.
    """
    if silent is None:
        return None
    return max(0.0, min(silent, silent + received / LEAST_RATE - spent))
