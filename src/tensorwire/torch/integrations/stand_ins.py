"""The files of a checkpoint that Transformers loads, and small ones that stand for them."""

from __future__ import annotations

import os
import shutil
import struct
import weakref
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.numpy import save_file

from ..._ground.copies import not_copied
from ...codec import as_array, num_threads
from ...errors import ErrorContext
from ...files.beside import open_beside
from ...files.header import build_header, packed
from ...files.load_ahead import LoadAhead
from ...storage.pages import PagesAhead
from ..loading import mapped, stays_compressed

if TYPE_CHECKING:
    from torch import Tensor

    from ...files.loader import Verify
    from ...files.reader import StoredFile, StoredTensor

_PLACE = struct.Struct("<II")
"""The number of a file and of a tensor in it, as bytes: Transformers may convert them to any dtype of a model."""


class CheckpointFiles:
    """The files of a checkpoint and what stands for them, until it is closed or forgotten."""

    __reduce_ex__ = not_copied("open files and a temporary directory", "call from_pretrained again")

    def __init__(self, paths: list[str], min_numel: int | None, verify: Verify) -> None:
        """`min_numel`: of tensors that stay compressed if they can, None if none is to."""
        self._min_numel = min_numel
        self._verify = verify
        with ExitStack() as stack:
            self._stored = [stack.enter_context(open_beside(Path(path))) for path in paths]
            for stored in self._stored:
                if any(map(stored.needs_base, stored.tensors.values())):
                    raise ValueError(
                        f"{str(stored.path)!r} is a delta, and from_pretrained takes no base; first run tensorwire "
                        "decompress DELTA FOLDER --base OLD, and load FOLDER"
                    )
            self._directory = mkdtemp(prefix="tensorwire-")
            # Also where loading fails and this is not closed, without the warning of a TemporaryDirectory.
            stack.callback(weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True))
            self._tensors = [list(stored.tensors.values()) for stored in self._stored]
            self._open = stack.pop_all()

    def stand_ins(self) -> list[str]:
        """Files to load in the place of those of the checkpoint, which are read ahead from now on."""
        pairs = [(stored, tensor) for stored in self._stored for tensor in stored.tensors.values()]
        pairs.sort(key=lambda pair: _expected_place(pair[1].name))
        if self._verify != "load":
            PagesAhead().add(stored.place_in_map(tensor) for stored, tensor in pairs if self._keeps(stored, tensor))
            pairs = [pair for pair in pairs if not self._keeps(*pair)]
        self._ahead = LoadAhead(pairs, self._keeps, num_threads(None), verify=self._verify is not False)
        self._open.callback(self._ahead.close)
        paths = []
        for number, tensors in enumerate(self._tensors):
            path = f"{self._directory}/{number}.safetensors"
            places = {tensor.name: np.frombuffer(_PLACE.pack(number, i), np.uint8) for i, tensor in enumerate(tensors)}
            save_file(places, path, metadata={"format": "pt"})
            paths.append(path)
        return paths

    def hollow(self) -> list[str]:
        """Files of the same tensors without a byte of data, to load on the device meta."""
        paths = []
        for number, stored in enumerate(self._stored):
            path = Path(self._directory, f"{number}.safetensors")
            header = build_header({"format": "pt"}, packed((name, *stored.layout(name)) for name in stored.tensors))
            path.write_bytes(header.prefix)
            os.truncate(path, header.data_start + header.data_nbytes)
            paths.append(str(path))
        return paths

    def take(self, place: Tensor) -> Tensor:
        """The tensor at a place: compressed if it is to stay so, else decoded."""
        number, index = _PLACE.unpack(bytes(place.to(torch.uint8).tolist()))
        stored, tensor = self._stored[number], self._tensors[number][index]
        if self._verify != "load" and self._keeps(stored, tensor):
            return mapped(stored, tensor, stored.mapped_frame(tensor), self._verify)
        data, is_frame = self._ahead.take(stored, tensor)
        if is_frame:
            return mapped(stored, tensor, data, verify=False)
        dtype, shape, _ = stored.layout(tensor.name)
        stored.check_loadable(tensor)
        with ErrorContext(file=stored.path, tensor=tensor.name):
            dense: Tensor = as_array(data, dtype, shape, "pt")
        return dense

    def close(self) -> None:
        self._open.close()

    def _keeps(self, stored: StoredFile, tensor: StoredTensor) -> bool:
        """Whether a tensor stays compressed."""
        if self._min_numel is None or stored.is_relative(tensor):
            return False
        return stays_compressed(stored, tensor, self._min_numel)


def _expected_place(name: str) -> list[tuple[int, int, str]]:
    """A sort key for names in the order in which Transformers asks for them: numbers as numbers; experts, which it
    merges, matrix by matrix. Where that is wrong, loading takes longer."""
    before, _, behind = name.partition(".experts.")
    number, _, matrix = behind.partition(".")
    if number.isdigit():
        name = f"{before}.experts.{matrix}.{number}"
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split(".")]
