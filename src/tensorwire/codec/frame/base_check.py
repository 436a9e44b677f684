"""Whether the base at hand is the one that a relative frame needs, and the result what it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import BaseMismatchError, CorruptDataError
from ..view.arrays import byte_view
from . import core
from .threads import num_threads

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..view.arrays import TensorView
    from .facts import FrameInfo


def hash_of(data: Buffer, threads: int | None) -> str:
    """The content hash of a tensor's bytes."""
    leaves = core.hash_leaves(data, num_threads(threads))
    return core.hash_root(memoryview(data).nbytes, leaves).hex()


def base_mismatch(
    info: FrameInfo, found: str, *, found_hash: str | None = None, name: str | None = None, advice: str | None = None
) -> BaseMismatchError:
    """The error for a frame that has not got its base.

    Args:
        found: what there is instead.
        found_hash: its content hash, if that is known.
        name: what the base is called.
    """
    base = "a base" if name is None else f"a base {name}"
    text = f"expected {base} of {info.uncompressed_nbytes} bytes with content hash {info.base_hash}, {found}"
    if found_hash == info.content_hash:
        text += ", which is what the frame makes of its base: it was applied already"
    return BaseMismatchError(text, advice=advice)


def check_base_given(info: FrameInfo, base: Any) -> None:
    """Check that there is a base if, and only if, the frame is relative.

    Raises:
        BaseMismatchError: the frame is relative, and there is no base.
        ValueError: there is a base, and the frame is plain.
    """
    if info.base_hash is None and base is not None:
        raise ValueError("expected no base, the frame is not relative to one; leave base out")
    if info.base_hash is not None and base is None:
        raise base_mismatch(info, "got none", advice="pass base=, the tensor that the frame was made against")


def check_base_size(info: FrameInfo, base: Any) -> TensorView | None:
    """The bytes of the base that is given to decode a frame; None for a plain frame. Nothing is read.

    Raises:
        BaseMismatchError: the frame is relative, and there is no base, or one of another size.
        ValueError: there is a base, and the frame is plain.
    """
    check_base_given(info, base)
    if base is None:
        return None
    view = byte_view(base)
    check_base_nbytes(info, len(view.data))
    return view


def check_base_nbytes(info: FrameInfo, nbytes: int) -> None:
    """Raise BaseMismatchError if a base does not have the size that the frame needs."""
    if nbytes != info.uncompressed_nbytes:
        raise base_mismatch(info, f"got {nbytes} bytes")


def check_base_hash(info: FrameInfo, found: str | None) -> None:
    """Raise BaseMismatchError if a base has another content hash than the frame needs; None is not checked."""
    if found not in (None, info.base_hash):
        raise base_mismatch(info, f"got one with {found}", found_hash=found)


def check_result(info: FrameInfo, found: str) -> None:
    """Raise CorruptDataError if the content of a relative frame, by its hash, is not what it should be."""
    if found != info.content_hash:
        raise CorruptDataError(
            f"expected content with hash {info.content_hash}, got {found}",
            advice="the base changed while it was read, or the frame is damaged: try again, then fetch both again",
        )
