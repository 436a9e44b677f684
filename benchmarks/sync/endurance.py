"""Many versions through a store that fails and lags, to a follower that is killed again and again."""

from __future__ import annotations

import errno
import random
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import Row, Table
from tensorwire import load_file
from tensorwire.errors import FormatError
from tensorwire.sync import Follower, Publisher
from tests.support.processes import KILLED, exit_code, kill_at
from tests.support.stores import faulty_store
from tests.support.sync_runs import FOLLOWER, contents, stepped, weights

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "faulty://store"
VERSIONS, KILLS = 2_000, 200
TRIES = 50
"""A follower that gets no version in so many is stuck."""


def measure(quick: bool) -> list[Row]:
    """One row for files that are exchanged, and one for files in place."""
    versions, kills = (40, 8) if quick else (VERSIONS, KILLS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a hint or a removal that failed: the store is made to
        return [_run(in_place, versions, kills) for in_place in (False, True)]


class _Moody:
    """Faults of a store: errors before and after the deed, and listings that are late."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._listings: dict[str, list[Any]] = {}
        self.failures = 0

    def call(self, own: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        mood = self._generator.random()
        self.failures += mood < 0.03
        if mood < 0.02:
            raise OSError(errno.EIO, "before the deed")
        found = own(*arguments, **options)
        if mood < 0.03:
            raise OSError(errno.EIO, "after the deed")
        return found

    def listing(self, own: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        seen = self._listings.setdefault(path, [])
        seen.append(self.call(own, path, *rest, **options))
        del seen[:-3]
        return self._generator.choice(seen)


def _run(in_place: bool, versions: int, kills: int) -> Row:
    generator = random.Random(2_000)
    moody = _Moody(generator)
    found: Row = {"follower": "files in place" if in_place else "files exchanged"}
    count = dict.fromkeys(("versions", "kills", "looks", "wrong", "stuck"), 0)
    with (
        faulty_store(pipe_file=moody.call, cat_file=moody.call, info=moody.call, ls=moody.listing),
        tempfile.TemporaryDirectory() as folder,
    ):
        served = Path(folder) / "served"
        publisher = _insist(lambda: Publisher(URL, threads=1))
        current, known = weights(), {}
        unsure: set[int] = set()  # content of versions that may stand, though the publisher got an error
        while count["versions"] < versions:
            current = stepped(current, count["versions"])
            try:
                number = publisher.publish(current).version
            except OSError:
                unsure.add(_digest(current))
                continue
            count["versions"] += 1
            known[number] = _digest(current)
            if count["kills"] < kills and generator.random() < 2 * kills / versions:
                count["kills"] += _kill(served, in_place, generator.randrange(1, 20))
            count["stuck"] += not _caught_up(served, in_place, number, generator)
            held = Follower(URL, served, in_place=in_place, threads=1).version
            if held is not None:
                count["looks"] += 1
                expected = {known[held]} if held in known else unsure
                count["wrong"] += _digest(load_file(served)) not in expected
    return found | count | {"failures": moody.failures}


def _digest(tensors: dict[str, Any]) -> int:
    return hash(frozenset(contents(tensors).items()))


def _kill(served: Path, in_place: bool, step: int) -> int:
    """Whether a follower was killed before it had come to its end."""

    def child() -> None:
        kill_at(step, FOLLOWER)
        _caught_up(served, in_place, None, None)

    return exit_code(child) == KILLED


def _caught_up(served: Path, in_place: bool, number: int | None, generator: random.Random | None) -> bool:
    """Whether the directory gets the version after some tries. Now and then it may skip one."""
    if generator is not None and served.exists() and generator.random() < 0.2:
        return True
    follower = Follower(URL, served, in_place=in_place, threads=1)
    for _ in range(TRIES):
        try:
            if follower.stage() is not None:
                follower.commit()
        except (OSError, FormatError):
            continue
        if number is None or follower.version == number:
            return True
    return False


def _insist(make: Callable[[], Any]) -> Any:
    while True:
        with suppress(OSError):
            return make()


TABLE = Table(
    "endurance",
    "Many versions",
    "The publisher writes to a store in memory, a fake that is told to fail: 3 of 100 calls raise an error, a third of "
    "these after the deed, and listings may be those of two calls before. A follower of a directory is killed before "
    "a random one of the calls that change the disk. After each version the directory is compared with what was "
    "published as the version that the follower says it holds. If it says none, nothing is compared. Wrong counts what "
    f"differs, and stuck the followers that did not come to the newest version in {TRIES} tries. A fifth of the "
    "versions is skipped.",
    (
        ("follower", "follower", ""), ("versions", "versions", ",d"), ("killed", "kills", ",d"),
        ("errors of the store", "failures", ",d"), ("comparisons", "looks", ",d"), ("wrong", "wrong", "d"),
        ("stuck", "stuck", "d"),
    ),
    measure,
)  # fmt: skip
