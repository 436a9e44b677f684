"""What a publisher holds of tensors on a device: copies beside them, against which kernels write frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ....codec import FROM_TORCH, compress_bound, content_hash, frame_info
from ....errors import UnsupportedTensorError
from ....files.frame_file import Stored
from ....files.writer import may_save, saves
from ....sync.copies import Encoded
from ..writing.encoding import ENCODED, encode_into
from ..writing.hashes import content_hashes

if TYPE_CHECKING:
    from ....codec import Profile
    from ....sync.versions import Tensor

_READY_NBYTES = 256 << 20
"""Frames are fetched once their slots have so many bytes."""


class DeviceView(NamedTuple):
    """A tensor on a device that is to be published."""

    dtype: str
    shape: tuple[int, ...]
    tensor: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes


class _Waiting(NamedTuple):
    """A tensor whose frame is being written.

    Attributes:
        slot: for the frame; None if the content is stored as it is.
        size: of the frame, on the device.
    """

    name: str
    view: DeviceView
    copy: torch.Tensor
    base_hash: str | None
    slot: torch.Tensor | None
    size: torch.Tensor | None


class DeviceCopies:
    """Implements Copies. A copy is a flat tensor beside the one that was published.

    What a caller does with a tensor on the same stream, once it was put, comes after the frame in its turn.
    """

    def __init__(self, profile: Profile, threads: int) -> None:
        if profile != "fast":
            raise UnsupportedTensorError(
                f"expected profile 'fast' for tensors on a device, got {profile!r}",
                advice="the host alone writes that: publish tensor.cpu()",
            )
        self._threads = threads
        self._waiting: list[_Waiting] = []
        self._slot_nbytes = 0

    def view(self, array: torch.Tensor) -> DeviceView:
        dtype = FROM_TORCH.get(str(array.dtype).removeprefix("torch."))
        if dtype is None or array.layout != torch.strided or array.is_conj() or array.is_neg():
            raise UnsupportedTensorError(
                f"expected a dense tensor of a dtype that safetensors names, got {array.dtype}, {array.layout}"
            )
        return DeviceView(dtype, tuple(array.shape), array.detach().contiguous())

    def copy(self, view: DeviceView) -> tuple[torch.Tensor, str]:
        (found,) = content_hashes([view.tensor]).cpu().numpy()
        return view.tensor.clone().flatten(), found.tobytes().hex()

    def load(self, view: DeviceView, content: memoryview) -> torch.Tensor:
        found = torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)
        return found.to(view.tensor.device).view(view.tensor.dtype)

    def put(self, name: str, view: DeviceView, copy: torch.Tensor | None, base_hash: str | None) -> None:
        new, dtype = view.tensor.flatten(), view.dtype
        slot = size = None
        if view.tensor.dtype in ENCODED and may_save(dtype, view.nbytes):
            nbytes = compress_bound(dtype=dtype, shape=view.shape, profile="fast")
            slot = torch.empty(nbytes, dtype=torch.uint8, device=new.device)
            size = torch.empty(1, dtype=torch.int64, device=new.device)
            base = None if base_hash is None or copy is None else [copy.view(view.shape)]
            encode_into([view.tensor], [slot], size, profile="fast", base=base)
            self._slot_nbytes += nbytes
        if copy is None:
            copy = new.clone()
        else:
            copy.copy_(new)
        self._waiting.append(_Waiting(name, view, copy, base_hash, slot, size))

    def put_again(self, name: str, tensor: Tensor, copy: torch.Tensor) -> None:
        self.put(name, DeviceView(*tensor.layout, copy.view(tensor.shape)), copy, None)

    def encoded(self, *, last: bool) -> Iterator[Encoded]:
        if not last and self._slot_nbytes < _READY_NBYTES:
            return
        waiting, self._waiting, self._slot_nbytes = self._waiting, [], 0
        sizes = [each.size for each in waiting if each.size is not None]
        nbytes = iter(torch.cat(sizes).tolist() if sizes else [])
        for each in waiting:
            yield self._encoded(each, next(nbytes) if each.slot is not None else 0)

    def _encoded(self, each: _Waiting, nbytes: int) -> Encoded:
        view = each.view
        if each.slot is not None and nbytes:
            frame = _bytes_of(each.slot[:nbytes])
            info = frame_info(frame)
            if saves(nbytes, view.nbytes):
                stored = Stored(each.name, view.dtype, view.shape, frame, True, info.content_hash)
                return Encoded(stored, each.copy, each.base_hash)
        content = _bytes_of(each.copy.view(torch.uint8))
        found = content_hash(content, threads=self._threads)
        return Encoded(Stored(each.name, view.dtype, view.shape, content, False, found), each.copy, each.base_hash)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy().tobytes()
