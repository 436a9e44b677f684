"""Relative frames in memory: made against a base, decoded against it, and several of them as one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from ...errors import BaseMismatchError
from ..view.arrays import tensor_view
from ..view.buffers import Pin
from ..view.bytes_builder import BytesBuilder
from ..view.dtypes import dtype_bits
from . import core
from .base_check import check_base_hash, check_result, hash_of
from .facts import Profile
from .form import checked_hash, new_form, new_frame
from .layouts import as_layout

if TYPE_CHECKING:
    from ..view.arrays import TensorView
    from ..view.dtypes import Layout
    from .chunks import FrameReader
    from .facts import FrameInfo


def check_takes_base(profile: str) -> None:
    """Raise ValueError for the profile that has no relative frames, and for what is no profile."""
    if profile not in get_args(Profile):
        raise ValueError(f"expected one of the profiles {', '.join(get_args(Profile))}, got {profile!r:.60}")
    if profile == "resident":
        raise ValueError('profile "resident" takes no base: its frames are decoded alone; choose "fast" or "compact"')


def base_to_encode(source: TensorView, base: Any, dtype: str | None, profile: str) -> TensorView:
    """The bytes of a base that is given to `compress`; `dtype` as it was given there.

    Raises:
        ValueError: its dtype or size is not that of the tensor; or the profile has no relative frames.
        UnsupportedTensorError: it has no such bytes.
    """
    check_takes_base(profile)
    view = tensor_view(base, dtype)
    if view.dtype != source.dtype:
        raise ValueError(
            f"expected a base of dtype {source.dtype}, got {view.dtype}; leave the base out, or say with dtype= what "
            "the bytes of both are"
        )
    if len(view.data) != len(source.data):
        raise ValueError(
            f"expected a base of {len(source.data)} bytes, as the tensor has, got {len(view.data)}; leave the base out"
        )
    return view


def frame_of(source: TensorView, profile: str, layout: Layout | None = None, base: bytes | None = None) -> core.Frame:
    """The frame of a tensor that is still to be encoded; `base` as for new_frame()."""
    form = None if layout is None else new_form(layout)
    return new_frame(source.dtype, source.bits, source.shape, profile, form=form, base_hash=base)


def compress_into(
    frame: core.Frame, source: TensorView, base: TensorView | None, out: memoryview, threads: int, *, known_base: bool
) -> int:
    """Put the frame of a tensor at the front of `out`; return its size. Its base is none if that changes meanwhile,
    unless the frame has its hash."""
    data = None if base is None else base.data
    core.compress(frame, source.data, out, threads, data, known_base=known_base)
    source.check_memory()
    if base is not None:
        base.check_memory()
        if not known_base and hash_of(base.data, threads) != bytes(frame.base_hash).hex():
            # What the frame is relative to is what the base was while it was read, which is gone.
            warnings.warn(
                "the base changed while it was read, so the frame is a plain one; give a base that does not change "
                "meanwhile",
                RuntimeWarning,
                stacklevel=3,
            )
            layout = as_layout(frame.layout)
            plain = frame_of(source, core.PROFILES[frame.profile], layout)
            return compress_into(plain, source, None, out, threads, known_base=False)
    return int(frame.frame_nbytes)


def compress_bytes(
    content: memoryview, out: memoryview, *, dtype: str, shape: tuple[int, ...], profile: str, threads: int
) -> int:
    """Put the plain frame of a tensor of a dtype of safetensors at the front of `out`, at the least cost of a call;
    return its size.

    Raises:
        DoesNotFit, ValueError: as `compress`.
    """
    frame = new_frame(dtype, dtype_bits(dtype), shape, profile)
    core.compress(frame, content, out, threads)
    return int(frame.frame_nbytes)


def compress_over(
    base: memoryview,
    content: memoryview,
    *,
    dtype: str,
    shape: tuple[int, ...],
    profile: str,
    base_hash: str,
    threads: int,
) -> bytes:
    """The frame of a tensor relative to memory of ours with this hash, which becomes the tensor on the way.

    The memory holds what the frame does, even if another thread writes to `content` meanwhile.

    Raises:
        UnsupportedTensorError, ValueError: as `compress`. After any error the memory holds anything.
    """
    frame = new_frame(dtype, dtype_bits(dtype), shape, profile, base_hash=checked_hash(base_hash))
    builder = BytesBuilder(core.frame_bound(frame))
    core.compress(frame, content, builder.data, threads, base, known_base=True, replace_base=True)
    return builder.finish(int(frame.frame_nbytes))


def check_chain(infos: Sequence[FrameInfo], base: TensorView, base_hash: str) -> None:
    """Check that each frame is relative to what the one before it gives.

    Raises:
        BaseMismatchError: it is not: one is missing, out of order or there twice; the message names the link.
        ValueError: there is no frame, or a plain one.
    """
    if not infos:
        raise ValueError("expected one relative frame or more, got none")
    nbytes, found, giver = len(base.data), base_hash, "the base"
    for number, info in enumerate(infos, 1):
        if info.base_hash is None:
            raise ValueError(f"expected relative frames, delta {number} is a plain one: it needs nothing before it")
        if (info.base_hash, info.uncompressed_nbytes) != (found, nbytes):
            raise BaseMismatchError(
                f"delta {number} needs {info.uncompressed_nbytes} bytes with content hash {info.base_hash}, "
                f"{giver} has {nbytes} with {found}",
                advice=_chain_advice(infos, number - 1, base_hash),
            )
        nbytes, found, giver = info.uncompressed_nbytes, info.content_hash, f"what delta {number} gives"


def _chain_advice(infos: Sequence[FrameInfo], index: int, base_hash: str) -> str:
    """What is wrong with the link before frame `index`."""
    info = infos[index]
    if any(earlier.base_hash == info.base_hash for earlier in infos[:index]):
        return "it is there twice, or two were made against one base"
    if any(later.content_hash == info.base_hash for later in infos[index:]) or info.base_hash == base_hash:
        return "they are out of order: sort them as they were made"
    return "one between them is missing, or one is of another chain"


def is_same_memory(base: memoryview, out: memoryview) -> bool:
    """Whether `out` is the base, so that it is changed in place; ValueError if it is a part of it."""
    with Pin(base) as a, Pin(out) as b:
        if (a.address, a.nbytes) == (b.address, b.nbytes):
            return True
        if a.overlaps(b):
            raise ValueError("the output overlaps the base: give all of it to change it in place, or other memory")
        return False


def decode_checked(
    reader: FrameReader, blocks: memoryview, out: memoryview, base: memoryview, threads: int | None, *, own: bool
) -> None:
    """Decode all of a relative frame into `out`, our `own` memory or the caller's; `base` and the result have the right
    hashes then.

    Raises:
        BaseMismatchError: it is not the base; nothing was written to the caller's memory.
        FormatError: the frame is damaged.
    """
    info = reader.info
    in_place = not own and is_same_memory(base, out)
    if not own:
        found = hash_of(base, threads)
        if in_place and found == info.content_hash:
            return
        check_base_hash(info, found)
    if in_place:
        reader.check_blocks(blocks)
    result, base_hash = reader.decode_and_hash(blocks, out, base=base, hash_base=own, threads=threads)
    check_base_hash(info, base_hash)
    check_result(info, result)
