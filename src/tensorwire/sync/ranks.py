"""Ranks that publish one version together. The store is all that they share.

Rank 0 offers it: it puts ``rank-00000.json`` beside the versions, with a token that was never used before, and says
what tensors may be relative to. Each other rank puts its files, and then its part, ``rank-0000N.json``, with that
token. When all parts are there, rank 0 puts the index. A part of an earlier attempt has another token, and a rank that
waits puts its part anew for an offer that takes the place of the one it has seen. So files left by a dead process are
never mistaken for those of a live one.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Callable, KeysView, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..checkpoint.directory.config_and_index import checked_index, read_index
from ..errors import CorruptDataError, ErrorContext, FormatError
from ..files.json_object import canonical, load
from ..files.names import payload_name, shown
from ..storage.upload import remove_if_there
from .versions import Version, check_count, dump_index, folder_name, parse_index

if TYPE_CHECKING:
    from .store import Store
    from .versions import Tensor

_Found = TypeVar("_Found")

_POLL_SECONDS = 0.1


class Offer(NamedTuple):
    """A version that rank 0 makes.

    Attributes:
        token: of this attempt.
        number, lineage: of the version.
        base: the number and the writer of the version that tensors may be relative to; None for an anchor.
    """

    token: str
    number: int
    lineage: str
    base: tuple[int, str] | None


class RankPart(NamedTuple):
    """What one rank adds to a version.

    Attributes:
        rank: of the part.
        names: of all tensors of the rank.
        version: those that changed, as an index would tell of them; without a base if it is relative to nothing.
    """

    rank: int
    names: KeysView[str] | list[str]
    version: Version


class Ranks:
    """The other ranks, as one of them sees them.

    Attributes:
        rank, num_ranks: of this one, and of all.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, timeout: float) -> None:
        if not (type(rank) is type(num_ranks) is int and 0 <= rank < num_ranks):
            raise ValueError(f"expected a rank from 0 on and below num_ranks, got {rank!r} of {num_ranks!r}")
        if not timeout > 0:
            raise ValueError(f"expected a timeout above 0 seconds, got {timeout!r}")
        self.rank, self.num_ranks = rank, num_ranks
        self._store, self._timeout = store, timeout
        self._others = range(1, num_ranks)
        self._old = self._offered() if rank else None

    def offer(self, number: int, lineage: str, base: Version | None) -> Offer:
        """Begin a version, or begin it anew."""
        offer = Offer(secrets.token_hex(8), number, lineage, base and base.id)
        if self._others:
            self._put(offer._asdict())
        return offer

    def parts(self, offer: Offer) -> list[RankPart]:
        """The parts of the other ranks, once all are there with all of their files.

        Raises:
            TimeoutError: a rank is missing.
        """
        found: dict[int, RankPart] = {}

        def look() -> list[RankPart] | None:
            for rank in self._others:
                if rank not in found and (part := self._part(offer, rank)) is not None:
                    found[rank] = part
            return list(found.values()) if len(found) == len(self._others) else None

        def lacks() -> str:
            return f"a part from each rank, got none from rank {', '.join(map(str, self._others - found.keys()))}"

        return self._await(offer.number, look, lacks)

    def withdraw(self) -> None:
        """No index of the last offer will stand."""
        if self._others:
            remove_if_there(self._store.place / _file(0))

    def await_offer(self, number: int) -> Offer:
        """That of a version.

        Raises:
            ValueError: rank 0 is ahead.
            TimeoutError: it has not come so far.
        """

        def look() -> Offer | None:
            offer = self._offered()
            if offer is None or offer.number < number:
                return None
            return offer if offer.number == number or offer != self._old else None  # the old one may be of the dead

        offer = self._await(number, look, lambda: f"an offer of rank 0 for version {number:06d}, got none")
        if offer.number > number:
            raise ValueError(f"expected version {offer.number:06d}, at which rank 0 is, got {number:06d}")
        return offer

    def put(self, part: RankPart) -> None:
        """Say that this rank has put its files."""
        body = {"token": part.version.writer, "names": list(part.names)}
        self._put({**body, "index": dump_index(part.version).decode()})

    def await_outcome(self, offer: Offer) -> Version | Offer | None:
        """The version once it exists; or the offer that has taken the place of this one; None if it was withdrawn.

        Raises:
            TimeoutError: nothing of that came.
        """

        def look() -> tuple[Version | Offer | None] | None:
            now = self._offered()  # before the index, since rank 0 goes on after that one stands
            found = self._store.read(offer.number)
            if found is None and now == offer:
                return None
            return (found or (now if now is not None and now.number == offer.number else None),)

        [outcome] = self._await(offer.number, look, lambda: "that rank 0 ends what it has offered, got nothing")
        return outcome

    def _offered(self) -> Offer | None:
        body = self._read(0)
        token, number, lineage, base = (body.get(each) for each in Offer._fields)
        if not (isinstance(token, str) and type(number) is int and isinstance(lineage, str)):
            return None
        return Offer(token, number, lineage, tuple(base) if isinstance(base, list) else None)

    def _part(self, offer: Offer, rank: int) -> RankPart | None:
        """That of a rank; None if it belongs to another offer, or a file of it is not there."""
        body = self._read(rank)
        if body.get("token") != offer.token:
            return None
        with ErrorContext(file=self._store.place / _file(rank)):
            names, index = body.get("names"), body.get("index")
            if not (isinstance(index, str) and isinstance(names, list) and all(type(name) is str for name in names)):
                raise CorruptDataError("expected the part of a rank")
            version = parse_index(index.encode(), offer.number)
        return RankPart(rank, names, version) if self._store.is_whole(version) else None

    def _put(self, body: Mapping[str, Any]) -> None:
        self._store.put_note(_file(self.rank), checked_index(canonical(body)))

    def _read(self, rank: int) -> dict[str, Any]:
        """What a rank has put; nothing if it is missing or damaged: a new one takes its place.

        Raises:
            LimitExceededError: it is larger than what a rank puts.
        """
        place = self._store.place / _file(rank)
        with suppress(FileNotFoundError, NotADirectoryError), ErrorContext(file=place):
            data = read_index(place)
            with suppress(FormatError):
                return load(data)
        return {}

    def _await(self, number: int, look: Callable[[], _Found | None], expected: Callable[[], str]) -> _Found:
        """What `look` finds; while the store cannot be read, nothing."""
        deadline, error = time.monotonic() + self._timeout, None
        while True:
            try:
                found = look()
            except OSError as caught:
                found, error = None, caught
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                text = f"expected {expected()} within {self._timeout:g} seconds"
                raise TimeoutError(errno.ETIMEDOUT, text, str(self._store.place / folder_name(number))) from error
            time.sleep(min(_POLL_SECONDS, self._timeout))


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def merged(parts: Sequence[RankPart]) -> tuple[set[str], Version]:
    """The names of all tensors, and the version of that of rank 0, which comes first, with what changed on all ranks.

    Raises:
        ValueError: two ranks have a tensor, none has one, or a name is one that the payload of another tensor needs.
        CorruptDataError: a part is relative to something else.
        LimitExceededError: they have more tensors than a version has.
    """
    ranks: dict[str, int] = {}
    tensors: dict[str, Tensor] = {}
    homes: dict[str, str] = {}
    files: dict[str, int] = {}
    whole = parts[0].version._replace(tensors=tensors, homes=homes, files=files)
    for rank, names, version in parts:
        for name in names:
            if ranks.setdefault(name, rank) != rank:
                raise ValueError(f"expected tensor {shown(name)} from one rank, got it from {ranks[name]} and {rank}")
        if version.base_state not in (None, whole.base_state):
            raise CorruptDataError(f"expected the part of rank {rank} to be relative to the last version")
        tensors.update(version.tensors)
        homes.update(version.homes)
        files.update(version.files)
    if not ranks:
        raise ValueError("expected one tensor or more, got none")
    check_count(len(ranks))
    if taken := sorted(ranks.keys() & set(map(payload_name, ranks))):
        raise ValueError(f"tensor {shown(taken[0])} has the name that the payload of another needs; rename it")
    return set(ranks), whole


def is_part(part: RankPart, version: Version) -> bool:
    """Whether what a version says of the tensors of a rank is what the rank has put."""
    own, changed = part.version, version.tensors
    unchanged = part.names - own.tensors.keys()
    return (
        all(changed.get(name) == tensor for name, tensor in own.tensors.items())
        and not unchanged & changed.keys()
        and (not unchanged or version.base_state == own.base_state)
    )
