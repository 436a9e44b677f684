"""Tensors to frames in slots, where the tensors are: on a device by kernels, on the CPU by the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from ....codec import address_of, byte_view, compress, compress_bytes, num_threads
from ....errors import DoesNotFit, UnsupportedTensorError
from ..nvidia import required_driver
from .given import check_tensor, listed
from .kept import Kept
from .new_frames import Known, NewFrames
from .operands import ALIGNMENT, CODINGS, placed

if TYPE_CHECKING:
    from ....codec import Profile

PROFILES = ("resident", "fast")


def encode_into(
    tensors: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
    sizes: torch.Tensor,
    *,
    profile: Literal["resident", "fast"] = "resident",
    base: Sequence[torch.Tensor] | None = None,
    hashes: torch.Tensor | None = None,
    base_hashes: torch.Tensor | None = None,
) -> None:
    """Compress tensors into frames, each into a slot of its own: plain frames, or with `base` relative ones.

    On a CUDA device kernels do so, on the current stream, in few launches for all tensors together; the host waits for
    nothing. On the CPU the core does. The frames of both have the same content; their bytes may differ. Any thread may
    call it, also several at once.

    In a graph, first make the call once outside: with the same tensors and slots, before the graph is captured. None of
    the tensors may be one that is copied first: a copy has another place each time. What the call needs then stays on
    the device until the process ends. Replays compress what the tensors hold by then.

    Args:
        tensors: of BF16, F16, F8_E4M3 or F8_E5M2, all on one device, of any shape. One that is not contiguous, or not
            at a multiple of 16 bytes, is copied first.
        out: as many slots: contiguous uint8 tensors of one dimension on the same device; on a CUDA device at multiples
            of 16 bytes. ``compress_bound(dtype=..., shape=..., profile=...)`` bytes are always enough. Behind its frame
            a slot may hold anything.
        sizes: int64, (count,), on the same device: gets the bytes of each frame, and 0 for one that is larger than its
            slot.
        profile: of the frames; "fast" with `base`. A device encodes plain frames in "fast" with one tier shape for each
            dtype, without the kinds for zeros and for words that lie close together, so that they are larger than the
            host's.
        base: what each tensor is relative to: as many tensors of the same dtypes and shapes, on the same device. They
            may be the tensors themselves, or overlap them. Others may not write to them meanwhile, also not on another
            stream. A slot then takes 8 bytes more for each 32,768 elements.
        hashes: uint8, (count, 16), on the same device: the content hashes of the tensors, if they are known, as bytes.
            Then they are not computed. It is your promise: with others a frame is invalid.
        base_hashes: the same of the bases.

    Raises:
        UnsupportedTensorError: the dtype of a tensor is another one, or it has no memory of its own, as a compressed
            one. Nothing is launched then, here and below.
        TypeError: something is no tensor, or a tensor is given in the place of a list.
        ValueError: there is no such profile; or lengths, dtypes, shapes or devices do not go together; or there are
            hashes of bases without these.
        RuntimeError: the device has no NVRTC; or a graph is captured, and the call was not made before.
        LimitExceededError: a tensor is larger than the format allows.
    """
    tensors, out, bases = listed("tensors", tensors), listed("out", out), None if base is None else listed("base", base)
    check_tensor("sizes", sizes)
    _check(tensors, out, sizes, hashes)
    _check_bases(tensors, bases, profile, base_hashes)
    if not tensors:
        return
    driver = required_driver(sizes.device)
    if driver is None:
        for number, (tensor, slot) in enumerate(zip(tensors, out, strict=True)):
            sizes[number] = _encode_on_host(tensor, bases and bases[number], slot, profile)
        return
    tensors, bases = [placed(tensor) for tensor in tensors], bases and [placed(each) for each in bases]
    known = Known(hashes is not None, base_hashes is not None)
    places = [(each.data_ptr(), each.dtype, each.shape) for each in (*tensors, *(bases or ()), *out)]
    key = (driver, profile, known, tuple(places))
    frames = _kept.find(key, sizes.device, lambda: NewFrames(driver, tensors, bases, out, profile, known))
    frames.encode(sizes, hashes, base_hashes)


def _check(
    tensors: list[torch.Tensor], out: list[torch.Tensor], sizes: torch.Tensor, hashes: torch.Tensor | None
) -> None:
    count, device = len(tensors), sizes.device
    if len(out) != count:
        raise ValueError(f"expected {count} slots, one for each tensor, got {len(out)}")
    _check_numbers("sizes", sizes, torch.int64, (count,), device)
    if hashes is not None:
        _check_numbers("hashes", hashes, torch.uint8, (count, 16), device)
    for number, (tensor, slot) in enumerate(zip(tensors, out, strict=True)):
        if tensor.dtype not in CODINGS or tensor.layout != torch.strided:
            raise UnsupportedTensorError(
                f"expected tensors of {', '.join(each.name for each in CODINGS.values())}, got one of {tensor.dtype} "
                f"and layout {tensor.layout}: number {number}",
                advice="compress it on the host: tensorwire.compress(tensor.cpu())",
            )
        if tensor.device != device:
            raise ValueError(f"expected tensor {number} on {device}, as sizes are, got one on {tensor.device}")
        address_of(tensor)  # it has one
        _check_numbers(f"slot {number}", slot, torch.uint8, (slot.numel(),), device)
        if device.type != "cpu" and slot.data_ptr() % ALIGNMENT:
            raise ValueError(f"expected slot {number} at a multiple of {ALIGNMENT} bytes, got {slot.data_ptr():#x}")


def _check_bases(
    tensors: list[torch.Tensor], bases: list[torch.Tensor] | None, profile: str, base_hashes: torch.Tensor | None
) -> None:
    if profile not in PROFILES or (bases is not None and profile != "fast"):
        relative = "" if bases is None else " with a base"
        raise ValueError(
            f"expected profile 'resident' or 'fast', and 'fast' for relative ones, got {profile!r}{relative}"
        )
    if bases is None:
        if base_hashes is not None:
            raise ValueError("expected a base with base_hashes, got none; leave base_hashes out")
        return
    if len(bases) != len(tensors):
        raise ValueError(f"expected {len(tensors)} bases, one for each tensor, got {len(bases)}")
    for number, (tensor, base) in enumerate(zip(tensors, bases, strict=True)):
        for fact in ("dtype", "layout", "device", "shape"):
            if getattr(base, fact) != getattr(tensor, fact):
                raise ValueError(
                    f"expected base {number} of {fact} {getattr(tensor, fact)}, as its tensor has, got "
                    f"{getattr(base, fact)}"
                )
        address_of(base)  # it has one
    if tensors and base_hashes is not None:
        _check_numbers("base_hashes", base_hashes, torch.uint8, (len(tensors), 16), tensors[0].device)


def _check_numbers(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> None:
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous() or tensor.device != device:
        raise ValueError(
            f"expected {name} as a contiguous tensor of {dtype} and shape {shape} on {device}, got {tensor.dtype} and "
            f"{tuple(tensor.shape)} on {tensor.device}, strides {tensor.stride()}"
        )


def _encode_on_host(tensor: torch.Tensor, base: torch.Tensor | None, slot: torch.Tensor, profile: Profile) -> int:
    content = byte_view(tensor.detach().contiguous()).data
    out = byte_view(slot, writable=True).data
    name, shape = CODINGS[tensor.dtype].name, tuple(tensor.shape)
    try:
        if base is None:
            return compress_bytes(content, out, dtype=name, shape=shape, profile=profile, threads=num_threads(None))
        old = byte_view(base.detach().contiguous()).data
        return len(compress(content, base=old, out=out, dtype=name, shape=shape, profile=profile))
    except DoesNotFit:
        return 0


_kept: Kept[NewFrames] = Kept()
