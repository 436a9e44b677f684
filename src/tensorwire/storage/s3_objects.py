"""Ranges of objects in stores that speak S3, by fsspec's `s3fs`, which compares no answer with the object's opening."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

from .again import Again, all_of, wait_for
from .store_errors import CHANGED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


def fetch(store: Any, key: str, ranges: Sequence[tuple[int, int]], facts: Mapping[str, Any]) -> list[bytes]:
    """Ranges of an object, each in a request of its own, at once.

    A call that fails is repeated by s3fs, which has its own number of tries and limits of time; a cut body, here.

    Args:
        facts: what the store has said of the object when it was opened; the ETag of each answer is compared with it.

    Raises:
        OSError: it is another object by now, or the store refuses.
    """
    bucket, name, version = store.split_path(key)
    place = {"Bucket": bucket, "Key": name, **({"VersionId": version} if version else {}), **store.req_kw}

    def ask(start: int, stop: int) -> Callable[[], Awaitable[bytes]]:
        async def part() -> bytes:
            if start == stop:  # which no header can say
                return b""
            answer = await store._call_s3("get_object", Range=f"bytes={start}-{stop - 1}", **place)
            try:
                if _tag(answer) and _tag(facts) and _tag(answer) != _tag(facts):
                    raise OSError(errno.EBUSY, CHANGED)
                return await _read(answer["Body"])
            finally:
                answer["Body"].close()

        return part

    return wait_for(store, all_of([ask(start, stop) for start, stop in ranges]))


def _tag(facts: Mapping[str, Any]) -> str:
    """Listings of some stores have it without quotes."""
    return str(facts.get("ETag") or "").strip('"')


async def _read(body: Any) -> bytes:
    from s3fs.core import S3_RETRYABLE_ERRORS

    try:
        data: bytes = await body.read()
    except (*S3_RETRYABLE_ERRORS, asyncio.TimeoutError) as error:
        text = f"the connection broke: {error or type(error).__name__}"
        raise Again(ConnectionResetError(errno.ECONNRESET, text)) from None
    return data
