"""The side of the trainer: what changed since the version before, written to a store."""

from __future__ import annotations

import errno
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from .._ground.text import count, in_a_line, size
from ..codec import check_takes_base, num_threads
from ..errors import BaseMismatchError, ErrorContext, FormatError, TensorwireError
from ..files.header import check_dtype
from ..storage.locations import is_path, locate
from .checkpoints import named_pairs, read_tensors
from .copies import Copies, HostCopies
from .elsewhere import Elsewhere, memory_of
from .frames import Frames
from .new_shards import NewShards
from .ranks import Offer, RankPart, Ranks, is_part, merged
from .small_files import read_directory
from .store import MAX_LINKS, Store, other_publisher
from .versions import (
    MAX_NUMBER,
    Tensor,
    Version,
    check_count,
    dump_index,
    folder_name,
    is_number,
    nbytes_of,
    result,
    state_of,
    steps,
)  # fmt: skip

if TYPE_CHECKING:
    import os

    from ..codec import Profile
    from .copies import View


class Published(NamedTuple):
    """What `Publisher.publish` has written.

    Attributes:
        version: its number.
        is_anchor: whether it holds all tensors, so that a follower needs nothing before it.
        nbytes: of its files, without the index.
        num_changed: tensors that it holds.
        seconds: of the stages "encode" and "write".
    """

    version: int
    is_anchor: bool
    nbytes: int
    num_changed: int
    seconds: dict[str, float]

    def __repr__(self) -> str:
        return in_a_line(
            self,
            f"version {self.version}",
            "an anchor" if self.is_anchor else "a delta",
            count(self.num_changed, "tensor"),
            size(self.nbytes),
            f"{sum(self.seconds.values()):.2f} s",
        )


class _Held(NamedTuple):
    """Our copy of a tensor that was published; `copies` made it."""

    tensor: Tensor
    copy: Any
    copies: Copies


class Publisher:
    """Publishes versions of tensors to a store, of which followers make the same tensors, bit for bit.

    A version holds what changed since the one before; every 25th or so, an anchor, holds everything. The publisher
    keeps one copy of each tensor where it lies: in memory, or on a device, for which tensorwire.torch has to be
    imported before. One thread at a time may use it, and one publisher a store. Several ranks that have a part of the
    tensors each may be one publisher.

    Args:
        store: a directory, which is made if it is not there, or a URL.
        base: the tensors, or the checkpoint, that was published last, if they are at hand. A publisher goes on behind
            the newest version of the store; what `base` does not have of that is read from the store, tensor by tensor,
            when it is published first. A RuntimeWarning tells of a base with another content; another one, that the
            newest version is not whole, so that the next one is an anchor.
        profile: "fast", or "compact", which is smaller and slower, and for tensors on the CPU alone.
        anchor_every: versions from one anchor to the next, at most 10,000. An anchor also follows a version that takes
            more than half as many bytes as the anchor did.
        keep: anchors that are kept, with the versions that follow them. What is older is removed once a new anchor
            stands.
        rank, num_ranks: which of how many processes this is that publish each version together. Rank 0 decides of
            anchors and removes old versions, so `anchor_every` and `keep` are its own. `base` is that of this rank.
        timeout: how many seconds a rank waits for another one.
        threads: by default all usable cores.
        storage_options: of URLs: docs/remote.md.

    Attributes:
        version: the number of the newest version that this publisher knows of; None if there is none.

    Raises:
        ValueError: an option is out of its range, or the profile is none or takes no base.
        FormatError, OSError: `base` or the newest index cannot be read.
    """

    __reduce_ex__ = not_copied("its turn in a store", "make another one, with base= what it has published")

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self._store.place,
            "no version" if self.version is None else f"version {self.version}",
            f"rank {self._ranks.rank} of {self._ranks.num_ranks}" if self._ranks.num_ranks > 1 else None,
        )

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        base: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        profile: Profile = "fast",
        anchor_every: int = 25,
        keep: int = 2,
        rank: int = 0,
        num_ranks: int = 1,
        timeout: float = 600.0,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_takes_base(profile)
        for name, number in (("anchor_every", anchor_every), ("keep", keep)):
            if type(number) is not int or number < 1:
                raise ValueError(f"expected a whole number from 1 on as {name}, got {number!r}")
        if anchor_every > MAX_LINKS:
            raise ValueError(f"expected at most {MAX_LINKS:,} as anchor_every, got {anchor_every:,}")
        self._store, self._storage_options = Store(locate(store, storage_options)), storage_options
        self._ranks = Ranks(self._store, rank, num_ranks, timeout)
        self._profile, self._threads = profile, num_threads(threads)
        self._anchor_every, self._keep = anchor_every, keep
        self._writer = secrets.token_hex(8)
        self._held: dict[str, _Held] = {}
        self._copies: dict[Elsewhere | None, Copies] = {None: HostCopies(profile, self._threads)}
        self._all: dict[str, Tensor] = {}  # of the last version, those of other ranks too
        self._needs_anchor, self._lost = True, False
        self._num_links, self._anchor_nbytes = 0, 0
        self._lineage = secrets.token_hex(8)
        self._last = self._store.newest()
        self._temporary: set[str] = set()  # files that were there at the last anchor
        self._told: set[int] = set()  # versions that are known not to go
        self._in_store: dict[str, list[Version]] = {}  # by tensor that is not held: what makes it
        if self._last is not None and self._resume(self._last) and base is not None:
            self._take(base, self._last, storage_options)

    def _resume(self, last: Version) -> bool:
        """Go on behind a version, if all that leads to it is there."""
        try:
            links = self._store.links(last, None)
            self._all = result({}, links)
            if self._ranks.rank == 0:
                self._check_whole(links)
        except (FileNotFoundError, FormatError) as error:
            text = f"nothing can be relative to version {last.number:06d}, so the next one has all tensors: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
            return False
        self._in_store = steps({}, links, self._all)
        self._lineage, self._num_links = last.lineage, len(links) - 1
        self._anchor_nbytes = links[0].nbytes
        self._needs_anchor = last.base is not None and 2 * last.nbytes > self._anchor_nbytes
        return True

    def _check_whole(self, links: Sequence[Version]) -> None:
        for link in links:
            if not self._store.is_whole(link):
                text = "a file of it is missing"
                raise FileNotFoundError(errno.ENOENT, text, str(self._store.place / folder_name(link.number)))

    def _take(self, base: Any, last: Version, storage_options: Mapping[str, Any] | None) -> None:
        """Hold what `base` has of a version, so that it need not be read from the store."""
        differs = False
        for name, held in self._read_base(base, storage_options) if is_path(base) else self._copy_base(base):
            if self._all.get(name) == held.tensor:
                self._held[name] = held
            else:
                differs = True
        if differs or (self._ranks.num_ranks == 1 and len(self._held) < len(self._all)):
            text = (
                f"base is not what version {last.number:06d} holds, the newest one: what differs is read from the store"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _read_base(self, base: Any, storage_options: Mapping[str, Any] | None) -> Iterator[tuple[str, _Held]]:
        for name, tensor, data in read_tensors(locate(base, storage_options), self._threads):
            yield name, _Held(tensor, data, self._copies[None])

    def _copy_base(self, base: Any) -> Iterator[tuple[str, _Held]]:
        for name, array in named_pairs(base):
            with ErrorContext(tensor=name):
                copies = self._copies_for(array)
                view = copies.view(array)
                copy, found = copies.copy(view)
            yield name, _Held(Tensor(view.dtype, view.shape, found), copy, copies)

    def _copies_for(self, array: Any) -> Copies:
        """The copies in the memory that the array lies in."""
        memory = memory_of(array)
        if memory is not None and memory not in self._copies:
            self._copies[memory] = memory.copies(self._profile, self._threads)
        return self._copies[memory]

    @property
    def version(self) -> int | None:
        return None if self._last is None else self._last.number

    def publish(
        self,
        named_tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
        version: int | None = None,
        *,
        anchor: bool = False,
        small_files: str | os.PathLike[str] | None = None,
    ) -> Published:
        """Write what changed.

        Args:
            named_tensors: all tensors, or those of this rank, NumPy arrays or torch tensors: a mapping, or pairs in
                any order, of which one at a time is in use. One in this process's memory may be written to meanwhile;
                then followers get a mix of old and new values, the same ones that the next version is relative to.
                Tensors on a device, once tensorwire.torch was imported, are encoded there on torch's current stream,
                and only frames come to the host.
            version: its number, above that of the version before; by default the next one. Ranks give the same one.
            anchor: have this version hold all tensors. Rank 0 decides.
            small_files: a directory, or the URL of one, whose small files (config.json, the tokenizer) travel with this
                version, in the place of those before; by default those before stay. Rank 0 gives them.

        Raises:
            ValueError: a name is there twice, the number is not above the last one or missing, or there is no tensor.
            UnsupportedTensorError: a tensor cannot be read or stored.
            FileExistsError: another publisher writes to this store. This one cannot go on.
            TimeoutError: a rank that the message names has not come.
            FormatError, BaseMismatchError: what the publisher goes on behind is damaged in the store.
            OSError: the store cannot be read or written to, or rank 0 has failed.
            After an error the next version is an anchor.
        """
        if self._ranks.rank:
            return self._publish_part(named_tensors, version)
        given = None if small_files is None else read_directory(locate(small_files, self._storage_options))
        number = self._begin(version)
        is_anchor = anchor or self._needs_anchor or self._num_links + 1 >= self._anchor_every
        self._needs_anchor = True  # until the index stands, the copy is no base
        base = None if is_anchor else self._last
        shards = NewShards(self._store, number, 0, self._profile)
        offer = self._ranks.offer(number, self._lineage, base)
        try:
            self._put_all(named_tensors, shards, is_anchor=is_anchor)
            names, found = merged([self._part(offer, shards, base), *self._ranks.parts(offer)])
            if base is not None and self._all.keys() - names:
                # A version that is relative cannot say that a tensor is gone.
                base = None
                shards.remove()
                self._put_copies(shards)
                offer = self._ranks.offer(number, self._lineage, base)
                _, found = merged([self._part(offer, shards, base), *self._ranks.parts(offer)])
            tensors = {**({} if base is None else self._all), **found.tensors}
            check_count(len(tensors))
            before = {} if self._last is None else self._last.small
            small = shards.add_small(given, before, is_anchor=base is None)
            found = found._replace(writer=self._writer, state=state_of(tensors), small=small)
            index = dump_index(found)
        except BaseException:
            for undo in (self._ranks.withdraw, shards.remove):
                with suppress(OSError):
                    undo()
            raise
        try:
            self._store.put_index(found, index)
        except FileExistsError:
            self._lost = True
            with suppress(OSError):
                shards.remove()
            raise
        self._all = tensors
        return self._end(found, shards)

    def _publish_part(self, named_tensors: Any, number: int | None) -> Published:
        """What a rank does that is not rank 0."""
        if not is_number(number) or self._store.read(number) is not None:
            raise ValueError(f"expected the number of a version that does not exist yet, got {number!r}")
        offer = self._ranks.await_offer(number)
        base = None if self._needs_anchor or self._last is None or self._last.id != offer.base else self._last
        self._needs_anchor = True  # as in `publish`
        shards = NewShards(self._store, number, self._ranks.rank, self._profile)
        try:
            self._put_all(named_tensors, shards, is_anchor=base is None)
        except BaseException:
            with suppress(OSError):
                shards.remove()
            raise
        while True:  # from now on the files stay, since an index may come to stand that names them
            part = self._part(offer, shards, base)
            self._ranks.put(part)
            found = self._ranks.await_outcome(offer)
            if isinstance(found, Version):
                break
            if found is None:
                text = "rank 0 has withdrawn this version; its own error says why. The next one is an anchor"
                raise OSError(errno.ECANCELED, text, str(self._store.place / folder_name(number)))
            if base is not None and base.id != found.base:
                base = None
                shards.clear()
                self._put_copies(shards)
            offer = found
        if not is_part(part, found):
            text = f"stands without what rank {self._ranks.rank} has put; publish the next version"
            raise FileExistsError(errno.EEXIST, text, str(self._store.place / folder_name(number)))
        self._last, self._needs_anchor = found, False
        return _published(found, shards)

    def _part(self, offer: Offer, shards: NewShards, base: Version | None) -> RankPart:
        tensors = shards.tensors
        version = Version(
            offer.number, offer.lineage, offer.token, state_of(tensors), base and base.number, base and base.state,
            tensors, shards.homes, shards.files,
        )  # fmt: skip
        return RankPart(self._ranks.rank, self._held.keys(), version)

    def _begin(self, version: int | None) -> int:
        """The number of the next version; what others did to the store is seen here."""
        last = self._last
        found = self._store.newest(*([] if last is None else [last.number]))
        if found != last:
            # Ours is one whose index was written though the store said no; an older one, what is left of a store.
            is_other = found is not None and found.writer != self._writer
            self._lost |= is_other and (last is None or found is None or found.number >= last.number)
            self._needs_anchor = True
            self._lineage = secrets.token_hex(8)
        if self._lost:
            raise other_publisher(self._store.place)
        least = 0 if last is None else last.number + 1
        if self._ranks.num_ranks > 1:  # that of a step, so that no rank's part is of another one
            if not is_number(version) or version < least:
                raise ValueError(f"expected a version from {least} on, the same on all ranks, got {version!r}")
            return version
        if self._needs_anchor:
            least = max([least, *(number + 1 for number in self._store.numbers())])
        if least > MAX_NUMBER:
            raise ValueError(f"expected versions up to {MAX_NUMBER}, which this store has; begin another one")
        if version is not None and (not is_number(version) or version < least):
            raise ValueError(f"expected a version from {least} on, got {version!r}; leave it out to take the next one")
        return least if version is None else version

    def _put_all(self, named_tensors: Any, shards: NewShards, *, is_anchor: bool) -> None:
        """Hold these tensors, and put those that changed."""
        if isinstance(named_tensors, Sized):
            check_count(len(named_tensors))
        for copies in self._copies.values():
            copies.drop()
        names: set[str] = set()
        in_store, self._in_store = self._in_store, {}
        with Frames(self._store, {} if is_anchor else in_store) as frames:
            for name, array in named_pairs(named_tensors):
                names.add(name)
                check_count(len(names))
                self._put(name, array, frames, is_anchor=is_anchor)
                self._take_encoded(shards, last=False)
            self._take_encoded(shards, last=True)
        for name in self._held.keys() - names:
            del self._held[name]
        shards.end()

    def _put_copies(self, shards: NewShards) -> None:
        """Put all tensors as they are held."""
        for name, held in self._held.items():
            held.copies.put_again(name, held.tensor, held.copy)
            self._take_encoded(shards, last=False)
        self._take_encoded(shards, last=True)
        shards.end()

    def _put(self, name: str, array: Any, frames: Frames, *, is_anchor: bool) -> None:
        """Have a tensor encoded, against what is held of it."""
        with ErrorContext(tensor=name):
            copies = self._copies_for(array)
            view = copies.view(array)
            check_dtype(view.dtype)
            new = Tensor(view.dtype, view.shape, "")
            old = self._held.get(name) or self._read(name, view, copies, frames)
            if old is not None and old.copies is not copies:  # it came from other memory
                old = None
            is_base = old is not None and old.tensor.layout == new.layout and not is_anchor
            known = old.tensor.hash if old is not None and is_base else None
            room = old.copy if old is not None and nbytes_of(old.tensor) == nbytes_of(new) else None
            copies.put(name, view, room, known)

    def _take_encoded(self, shards: NewShards, *, last: bool) -> None:
        """Hold what was encoded, and add what changed to a version."""
        for copies in self._copies.values():
            for stored, copy, base_hash in copies.encoded(last=last):
                tensor = Tensor(stored.dtype, stored.shape, stored.content_hash)
                self._held[stored.name] = _Held(tensor, copy, copies)
                if stored.content_hash != base_hash:
                    shards.add(stored)

    def _read(self, name: str, view: View, copies: Copies, frames: Frames) -> _Held | None:
        """What the last version holds in the place of a tensor; None if that is to be read for nothing.

        Raises:
            FormatError, OSError: the store is damaged, or cannot be read.
        """
        tensor = self._all.get(name)
        if name not in frames.plan or tensor is None or tensor.layout != (view.dtype, view.shape):
            return None
        copy, found = copies.copy(view)
        if found != tensor.hash:  # else it did not change
            content = new_buffer(nbytes_of(tensor))
            try:
                frames.apply(name, frames.plan[name], content, self._threads)
            except (FormatError, BaseMismatchError) as error:
                error.advice = "a version of the store is damaged: publish an anchor (anchor=True, or --anchor)"
                raise
            copy = copies.load(view, content)
        return _Held(tensor, copy, copies)

    def _end(self, version: Version, shards: NewShards) -> Published:
        """The version exists."""
        published = _published(version, shards)
        nbytes, is_anchor = published.nbytes, published.is_anchor
        if is_anchor:
            self._num_links, self._anchor_nbytes = 0, nbytes
        else:
            self._num_links += 1
        self._last = version
        self._needs_anchor = not is_anchor and 2 * nbytes > self._anchor_nbytes
        try:
            self._store.put_hint(version)
            if is_anchor:
                self._temporary = self._store.remove_temporary(self._temporary)
                self._remove_old()
        except (OSError, TensorwireError) as error:
            text = f"version {version.number:06d} stands, and something that comes after it was not done: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return published

    def _remove_old(self) -> None:
        """Remove what is older than the anchors to keep, if these and all behind them are whole.

        Raises:
            OSError: some versions cannot be removed, of which nothing was said before; all others are gone.
        """
        versions = []
        numbers = self._store.numbers()
        for number in numbers:
            version = self._store.read(number)
            if version is None:
                continue
            if not self._store.is_whole(version):
                return
            versions.append(version)
            if sum(each.base is None for each in versions) == self._keep:
                old = sorted(each for each in numbers if each < version.number)
                if errors := list(filter(None, map(self._removed, old))):
                    raise errors[0]
                return

    def _removed(self, number: int) -> OSError | None:
        """Remove a version. What stands against it is returned once."""
        try:
            self._store.remove(number)
        except OSError as error:
            is_known = number in self._told
            self._told.add(number)
            return None if is_known else error
        return None


def _published(version: Version, shards: NewShards) -> Published:
    return Published(version.number, version.base is None, version.nbytes, len(version.tensors), shards.seconds)
