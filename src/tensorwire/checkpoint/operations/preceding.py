"""What the files of a directory may be relative to in those before them, while a compressed directory is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ...errors import BaseMismatchError, FormatError
from ...files.beside import Beside, open_beside
from ...files.files_before import Contents, FilesBefore, OlderFile
from ...files.original_view import OriginalReader
from ...files.reader import StoredFile
from ...files.torch_file import open_stored
from ..directory.manifest import OF_TENSORS
from ..directory.order import in_order, older_files, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ...files.header import TensorEntry
    from ..directory.manifest import ManifestFile
    from ..directory.sources import SourceFile, Sources


class Preceding:
    """The files of a directory, and which contents those have that are written.

    Attributes:
        older: by the path of a file of a chain that of the same one in the checkpoint before.
    """

    def __init__(
        self,
        sources: Sources,
        root: Path,
        place: Callable[[str], Path],
        threads: int | None,
        *,
        chain: bool,
        alone: bool,
    ) -> None:
        """
        Args:
            root, place: where the result is made, and where a file of it stands that is finished.
            chain: files are relative to those of an older checkpoint.
            alone: one file is made, and not those before it: what they hold is found in their sources.

        Raises:
            ValueError: there are no checkpoints for a chain.
        """
        self._files = in_order(file for file in sources.files if file.kind in OF_TENSORS)
        self._by_path = {file.path: file for file in self._files}
        self.older = older_files(self._by_path) if chain else {}
        if chain and not self.older:
            raise ValueError(
                "expected several checkpoints for a chain, each a directory in the source, with files of tensors of "
                "the same names; found none; leave chain (--chain) out"
            )
        self._root = root
        self._place = place
        self._threads = threads
        self._alone = alone
        self._contents = Contents()
        self._has_users = not alone and any(map(rank, self._files))

    @contextmanager
    def of(self, source: SourceFile, tensors: Sequence[TensorEntry]) -> Iterator[FilesBefore]:
        """What a file with these tensors may be relative to."""
        contents = None
        if rank(source):
            contents = self._contents_before(source, tensors) if self._alone else self._contents
        older = self._by_path.get(self.older.get(source.path, ""))
        if older is None:
            yield FilesBefore(source.path, contents)
            return
        with open_stored(older.location) as stored:
            yield FilesBefore(source.path, contents, OlderFile(older.path, stored, self._written(older.path)))

    def add(self, entry: ManifestFile) -> None:
        """Note the contents of a file that is written."""
        if self._has_users and entry.kind in OF_TENSORS:
            tensors = entry.record().outline().header.entries
            with StoredFile(self._place(entry.path)) as stored:
                for tensor in tensors:
                    if (found := stored.tensors[tensor.name].content_hash) is not None:
                        whole = not rank(self._by_path[entry.path]) and stored.place is None
                        self._contents.add(entry.path, tensor.name, tensor.nbytes, found, whole=whole)

    def is_readable(self, path: str) -> bool:
        """Whether a file that is written finds its bases in those before it, as far as headers tell."""
        if self._alone:  # those before it are made by others
            return True
        with suppress(BaseMismatchError, FormatError):
            with open_beside(self._place(path), self._root) as stored:
                if isinstance(stored.beside, Beside):
                    stored.beside.check(stored)
            return True
        return False

    def _written(self, path: str) -> dict[str, str | None] | None:
        """The content hashes in what is written of a file; None if nothing is."""
        if not self._place(path).exists():
            return None
        with StoredFile(self._place(path)) as stored:
            return {tensor.name: tensor.content_hash for tensor in stored.tensors.values()}

    def _contents_before(self, source: SourceFile, tensors: Sequence[TensorEntry]) -> Contents:
        """The contents of the sources before one, as far as their sizes are those of its tensors."""
        contents = Contents()
        sizes = {tensor.nbytes for tensor in tensors}
        for file in self._files[: self._files.index(source)]:
            with open_stored(file.location) as stored:
                original = OriginalReader(stored, file.record(stored), self._threads)
                whole = not rank(file) and file.path not in self.older
                for index, tensor in enumerate(original.header.entries):
                    if tensor.nbytes in sizes:
                        found = original.content_hash(index)
                        contents.add(file.path, tensor.name, tensor.nbytes, found, whole=whole)
        return contents
