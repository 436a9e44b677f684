"""What a publisher holds of tensors on a device: copies beside them, against which kernels write frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ....codec import compress_bound, content_hash, frame_info
from ....errors import UnsupportedTensorError
from ....files.frame_file import Stored
from ....files.writer import may_save, saves
from ....sync.copies import Encoded, HostCopies
from ..writing.encoding import encode_into
from ..writing.hashes import content_hashes
from ..writing.operands import CODINGS, dtype_name

if TYPE_CHECKING:
    from ....codec import Profile, TensorView
    from ....sync.versions import Tensor

_CONTENT_HASH = slice(80, 96)  # of a frame (docs/format.md)
_READY_NBYTES = 256 << 20
"""Frames are fetched once their slots have so many bytes."""


class DeviceView(NamedTuple):
    """A tensor on a device that is to be published."""

    dtype: str
    shape: tuple[int, ...]
    tensor: torch.Tensor

    @property
    def nbytes(self) -> int:
        return int(self.tensor.nbytes)


class _Copy(NamedTuple):
    """A copy of a tensor.

    Attributes:
        content: flat.
        hash: of the content, uint8, (1, 16), on the device; None if it is not known there.
    """

    content: torch.Tensor
    hash: torch.Tensor | None


class _Waiting(NamedTuple):
    """A tensor whose frame is being written.

    Attributes:
        slot: for the frame; None if the content is stored as it is.
        size: of the frame, on the device.
    """

    name: str
    view: DeviceView
    copy: _Copy
    base_hash: str | None
    slot: torch.Tensor | None
    size: torch.Tensor | None


class DeviceCopies:
    """Implements Copies. A copy lies beside the tensor that was published. Tensors of dtypes that no kernel encodes
    come to the host, which holds a copy of them and encodes it.

    What a caller does with a tensor on the same stream, once it was put, comes after the frame in its turn.
    """

    def __init__(self, profile: Profile, threads: int) -> None:
        if profile != "fast":
            raise UnsupportedTensorError(
                f"expected profile 'fast' for tensors on a device, got {profile!r}",
                advice="the host alone writes that: publish tensor.cpu()",
            )
        self._threads = threads
        self._on_host = HostCopies(profile, threads)
        self._waiting: list[_Waiting] = []
        self._slot_nbytes = 0

    def view(self, array: torch.Tensor) -> DeviceView | TensorView:
        dtype = dtype_name(array)
        if dtype is None or array.layout != torch.strided or array.is_conj() or array.is_neg():
            raise UnsupportedTensorError(
                f"expected a dense tensor of a dtype that safetensors names, got {array.dtype}, {array.layout}"
            )
        if array.dtype not in CODINGS:
            return self._on_host.view(array.detach().cpu())
        return DeviceView(dtype, tuple(array.shape), array.detach().contiguous())

    def copy(self, view: DeviceView | TensorView) -> tuple[_Copy | memoryview, str]:
        if not isinstance(view, DeviceView):
            return self._on_host.copy(view)
        found = content_hashes([view.tensor])
        return _Copy(view.tensor.clone().flatten(), found), found.cpu().numpy().tobytes().hex()

    def load(self, view: DeviceView | TensorView, content: memoryview) -> _Copy | memoryview:
        if not isinstance(view, DeviceView):
            return self._on_host.load(view, content)
        found = torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)
        return _Copy(found.to(view.tensor.device).view(view.tensor.dtype), None)

    def put(
        self, name: str, view: DeviceView | TensorView, copy: _Copy | memoryview | None, base_hash: str | None
    ) -> None:
        if not isinstance(view, DeviceView):
            self._on_host.put(name, view, copy if isinstance(copy, memoryview) else None, base_hash)
        else:
            self._put_there(name, view, copy if isinstance(copy, _Copy) else None, base_hash)

    def _put_there(self, name: str, view: DeviceView, copy: _Copy | None, base_hash: str | None) -> None:
        new, slot, size, found = view.tensor.flatten(), None, None, None
        if copy is not None and copy.content.device != new.device:  # the tensor was moved
            copy = _Copy(copy.content.to(new.device), None)
        if may_save(view.dtype, view.nbytes):
            more = new.numel() // 4096  # of a relative frame, as encode_into says
            nbytes = compress_bound(dtype=view.dtype, shape=view.shape, profile="fast") + more
            slot = torch.empty(nbytes, dtype=torch.uint8, device=new.device)
            size = torch.empty(1, dtype=torch.int64, device=new.device)
            if base_hash is None or copy is None:
                encode_into([view.tensor], [slot], size, profile="fast")
            else:
                base = copy.content.view(view.shape)
                encode_into([view.tensor], [slot], size, profile="fast", base=[base], base_hashes=copy.hash)
            found = slot[_CONTENT_HASH].clone().view(1, 16)
            self._slot_nbytes += nbytes
        has_room = copy is not None and copy.content.dtype == new.dtype  # copy_ makes values of another dtype
        content = copy.content.copy_(new) if copy is not None and has_room else new.clone()
        self._waiting.append(_Waiting(name, view, _Copy(content, found), base_hash, slot, size))

    def put_again(self, name: str, tensor: Tensor, copy: _Copy | memoryview) -> None:
        if not isinstance(copy, _Copy):
            self._on_host.put_again(name, tensor, copy)
            return
        self.put(name, DeviceView(*tensor.layout, copy.content.view(tensor.shape)), copy, None)

    def encoded(self, *, last: bool) -> Iterator[Encoded]:
        yield from self._on_host.encoded(last=last)
        if not last and self._slot_nbytes < _READY_NBYTES:
            return
        waiting, self._waiting, self._slot_nbytes = self._waiting, [], 0
        for each in waiting:
            yield self._encoded(each, 0 if each.size is None else int(each.size))

    def drop(self) -> None:
        self._on_host.drop()
        self._waiting, self._slot_nbytes = [], 0

    def _encoded(self, each: _Waiting, nbytes: int) -> Encoded:
        view, copy = each.view, each.copy
        if each.slot is not None and nbytes == 0:  # no frame was written that has the hash
            copy = copy._replace(hash=None)
        if each.slot is not None and nbytes:
            frame = _bytes_of(each.slot[:nbytes])
            info = frame_info(frame)
            if saves(nbytes, view.nbytes):
                stored = Stored(each.name, view.dtype, view.shape, frame, True, info.content_hash)
                return Encoded(stored, copy, each.base_hash)
        content = _bytes_of(each.copy.content.view(torch.uint8))
        found = content_hash(content, threads=self._threads)
        return Encoded(Stored(each.name, view.dtype, view.shape, content, False, found), copy, each.base_hash)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy().tobytes()
