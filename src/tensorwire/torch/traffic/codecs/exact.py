"""Lossless messages: frames, relative to what the receiver has where it has something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ....codec import check_frame_size, compress, compress_bound, decompress, frame_info
from ....errors import FormatError

if TYPE_CHECKING:
    from torch import Tensor

_FEW_WORDS = 64


@dataclass(frozen=True)
class Exact:
    """Bit for bit, as frames (docs/format.md): differences from the tensor that the receiver holds, or all of it.

    FP32 without a base travels as a frame where all of it is BF16 numbers that were cast, such as the gradients of a
    backward in BF16. Other FP32 travels as it is: a frame of it is only about a sixth smaller. A tensor that a frame
    would not make smaller travels as it is, too. On a GPU kernels make the frames of BF16, F16 and FP8, with profile
    "fast", and other dtypes travel as they are.

    Attributes:
        profile: "fast", or "compact", which is smaller and slower.
    """

    profile: Literal["fast", "compact"] = "fast"
    lossless = True

    def __post_init__(self) -> None:
        if self.profile not in ("fast", "compact"):
            raise ValueError(f"expected profile 'fast' or 'compact', got {self.profile!r}")

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        if tensor.device.type != "cpu":
            return self._encode_there(tensor, base)
        if tensor.numel() == 0 or (base is None and tensor.dtype == torch.float32 and not _was_bf16(tensor)):
            return None
        room = torch.empty(compress_bound(tensor, profile=self.profile), dtype=torch.uint8)
        frame = compress(tensor, base=base, profile=self.profile, out=room, threads=torch.get_num_threads())
        return room[: len(frame)] if len(frame) < tensor.nbytes else None

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        if message.device.type != "cpu":
            _decode_there(message, out, base)
            return
        frame = message.numpy()
        info = frame_info(frame)
        check_frame_size(info, frame.nbytes)
        base = base if info.base_hash is not None else None
        decompress(frame, base=base, out=out, threads=torch.get_num_threads())

    def _encode_there(self, tensor: Tensor, base: Tensor | None) -> Tensor | None:
        from ...device import encode_into
        from ...device.writing.operands import CODINGS

        if tensor.numel() == 0 or tensor.dtype not in CODINGS:
            return None
        if self.profile != "fast":
            raise ValueError(f"expected profile 'fast' for tensors on {tensor.device}, got {self.profile!r}")
        nbytes = compress_bound(dtype=CODINGS[tensor.dtype].name, shape=tuple(tensor.shape), profile=self.profile)
        slot, size = tensor.new_empty(nbytes, dtype=torch.uint8), tensor.new_empty(1, dtype=torch.int64)
        encode_into([tensor], [slot], size, profile=self.profile, base=None if base is None else [base])
        used = int(size)
        return slot[:used] if 0 < used < tensor.nbytes else None


def _decode_there(message: Tensor, out: Tensor, base: Tensor | None) -> None:
    """By kernels, which take relative frames alone: the status of another one is HOST_ONLY."""
    from ...device import Status, apply_, decode_frame
    from ...device.writing.operands import placed
    from ...device.writing.status import error_of

    frame, target = placed(message), placed(out)
    if base is not None and base.data_ptr() != target.data_ptr():
        target.copy_(base)
    status = frame.new_empty(1, dtype=torch.int32)
    apply_([frame], [target], status)
    found = int(status)
    if found == Status.HOST_ONLY:
        content = decode_frame(frame)
        if content.dtype != out.dtype or content.numel() != out.numel():
            raise FormatError(f"expected {out.numel()} of {out.dtype}, got {content.numel()} of {content.dtype}")
        out.copy_(content.reshape(-1))
        return
    if found:
        raise error_of(found, "the frame")
    if target.data_ptr() != out.data_ptr():
        out.copy_(target)


def _was_bf16(tensor: Tensor) -> bool:
    """Whether the lower halves of all FP32 words are zero. A few of them tell in nearly every tensor where they are
    not."""
    lower = tensor.view(torch.int16)[::2].numpy()
    return not (lower[:: max(1, lower.size // _FEW_WORDS)].any() or lower.any())
