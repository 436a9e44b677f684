"""The operators ``torch.ops.tensorwire``: what a compressed tensor is made of, for eager torch and for torch.compile.

Each takes the frame as a uint8 tensor and, for shape inference, dtype and shape of the tensor that it holds. They are
functional; a frame's gradient does not exist, since its tensor is frozen. `compressed_tensor` has the derivatives of
`linear`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from .frames.open_frame import check_matches, opened, opened_anywhere, ready_to_multiply
from .frames.turn import is_capturing
from .products.joint import Group, Member, multiply_together
from .products.linear import is_in_known_order, multiply
from .products.side_stream import side_stream_of, takes
from .products.slabs import multiply_decoded
from .products.zeros import zeros

if TYPE_CHECKING:
    from torch import Tensor

LINEAR_MODES = ("exact", "fused")

_library = torch.library.Library("tensorwire", "DEF")
_library.define("decode(Tensor frame, ScalarType dtype, SymInt[] shape, SymInt first=0) -> Tensor")
_library.define("decode.out(Tensor frame, SymInt first=0, *, Tensor(a!) out) -> ()")
_library.define("rows(Tensor frame, ScalarType dtype, SymInt[] shape, Tensor indices) -> Tensor")
_library.define("table(Tensor frame, ScalarType dtype, SymInt[] shape, Tensor indices) -> Tensor")
_library.define("experts(Tensor x, Tensor frame, ScalarType dtype, SymInt[] shape, Tensor ids) -> Tensor")
_library.define("linear(Tensor x, Tensor frame, ScalarType dtype, SymInt[] shape, Tensor? bias, str mode) -> Tensor")
_library.define(
    "linears(Tensor x, Tensor[] frames, ScalarType dtype, SymInt[] rows, SymInt columns, Tensor?[] biases) -> Tensor[]"
)


def check_linear_mode(mode: str) -> str:
    """`mode`, if it is one; else ValueError."""
    if mode not in LINEAR_MODES:
        raise ValueError(f"expected one of the modes {', '.join(LINEAR_MODES)}, got {mode!r}")
    return mode


def _decode(frame: Tensor, dtype: torch.dtype, shape: Sequence[int], first: int = 0) -> Tensor:
    """`shape` elements of the frame's tensor, from element `first` on."""
    reader = opened_anywhere(frame)
    check_matches(reader, dtype, shape, first)
    out = torch.empty(shape, dtype=dtype, device=frame.device)
    reader.decode(first, out)
    return out


def _decode_out(frame: Tensor, first: int = 0, *, out: Tensor) -> None:
    """The same into `out`, contiguous. Nothing is returned: a result that is an argument cannot be compiled."""
    if out.device != frame.device or not out.is_contiguous():
        raise ValueError(
            f"expected contiguous memory on {frame.device} to decode into, got strides {out.stride()} on {out.device}"
        )
    reader = opened_anywhere(frame)
    check_matches(reader, out.dtype, out.shape, first)
    reader.decode(first, out)


def _rows(frame: Tensor, dtype: torch.dtype, shape: Sequence[int], indices: Tensor) -> Tensor:
    """``tensor[indices]``; only the blocks of these rows are decoded: each run of neighbours at once, or by a kernel on
    a device, whose numbers are not waited for."""
    reader = opened_anywhere(frame)
    check_matches(reader, dtype, shape)
    if reader.rows is not None and indices.device == frame.device:
        out = torch.empty((*indices.shape, *shape[1:]), dtype=dtype, device=frame.device)
        reader.rows(indices if indices.dtype == torch.int32 else indices.to(torch.int64), out)
        return out
    wanted, places = _distinct(indices, shape)
    decoded = torch.empty((wanted.numel(), *shape[1:]), dtype=dtype, device=frame.device)
    for first, stop, row in _runs(wanted):
        reader.decode(row * math.prod(shape[1:]), decoded[first:stop])
    return decoded[places].reshape(*indices.shape, *shape[1:])


def _table(frame: Tensor, dtype: torch.dtype, shape: Sequence[int], indices: Tensor) -> Tensor:
    """The tensor with these rows decoded, and zeros for all others, which take no memory.

    For torch.compile: a graph that takes rows out of it is the dense model's. Inductor rounds where it ends a loop, and
    ends it by the number and the sizes of the tensors that it reads.
    """
    reader = opened(frame)
    check_matches(reader, dtype, shape)
    row_nbytes = math.prod(shape[1:]) * dtype.itemsize
    table = zeros(shape[0] * row_nbytes).view(dtype).view(shape)
    wanted, _ = _distinct(indices, shape)
    for first, stop, row in _runs(wanted):
        reader.decode(row * math.prod(shape[1:]), table[row : row + stop - first])
    return table


def _distinct(indices: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rows in order, each once, and the place of each index among them. IndexError for one that is out of range."""
    flat = indices.reshape(-1).to(torch.int64)
    if flat.numel() == 0:
        return flat, flat
    low, high = int(flat.min()), int(flat.max())
    if low < -shape[0] or high >= shape[0]:
        wrong = low if low < -shape[0] else high
        raise IndexError(f"index {wrong} is out of range for a tensor of {shape[0]} rows")
    wanted, places = torch.unique(torch.where(flat < 0, flat + shape[0], flat), return_inverse=True)
    return wanted, places


def _runs(wanted: Tensor) -> Iterator[tuple[int, int, int]]:
    """Neighbours among rows: the place of the first one, the place behind the last one, and the first row."""
    ends = (wanted.diff() != 1).nonzero().reshape(-1) + 1
    stops = [*ends.tolist(), wanted.numel()] if wanted.numel() else []
    for start, stop in zip([0, *stops], stops, strict=False):
        yield start, stop, int(wanted[start])


def linear_on_cpu(
    x: Tensor, frame: Tensor, dtype: torch.dtype, shape: Sequence[int], bias: Tensor | None, mode: str
) -> Tensor:
    """`torch.nn.functional.linear` with a compressed weight: the operator's kernel."""
    reader = opened(frame)
    check_matches(reader, dtype, shape)
    mode = check_linear_mode(mode)
    ahead = reader.ahead  # read once: another thread may close it
    if ahead is not None and (mode == "fused" or is_in_known_order(x, shape, bias)):
        ahead = None
    lease = ahead.take(reader) if ahead is not None else None
    if lease is not None:
        with lease as memory:
            weight = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)
            return linear(x, weight, bias)
    with reader.loaded() as frame_in_memory:
        return multiply(x, frame_in_memory, shape, bias, mode)


def _check_place(frame: Tensor, *others: Tensor | None) -> None:
    """Kernels get addresses, which mean nothing on another device."""
    for other in others:
        if other is not None and other.device != frame.device:
            raise ValueError(f"expected all tensors on {frame.device}, where the weight is, got one on {other.device}")


def linear_on_device(
    x: Tensor,
    frame: Tensor,
    dtype: torch.dtype,
    shape: Sequence[int],
    bias: Tensor | None,
    mode: str,
    *,
    in_turn: bool = False,
) -> Tensor:
    """One launch with the compressed weight, for as many inputs as that takes and where the frame allows it; in mode
    exact only in torch's own order of summation, if a trial has found it. Else the weight is decoded and torch
    multiplies: slab by slab where the frame allows that, or all at once.

    Args:
        in_turn: what comes next may be made along: weights that meet the same input (`joint`), or the next weight
            (`side_stream`). Not in a compiled graph, whose code writes to memory that it uses again without counting
            it, and whose memory is none to keep.
    """
    _check_place(frame, x, bias)
    reader = ready_to_multiply(frame)
    check_matches(reader, dtype, shape)
    side = side_stream_of(frame.device) if in_turn and not is_capturing(frame.device) else None
    if side is not None:
        if takes(x, reader):
            return side.multiply(x, reader, shape, bias)
        side.idle()
    product = reader.product_for(x, bias, check_linear_mode(mode))
    if product is None:
        slab = reader.slab_for(x, bias, mode)
        if slab:
            return multiply_decoded(x, reader, slab, bias)
        return linear(x, _decode(frame, dtype, shape), bias)
    inputs, output = x.reshape(-1, shape[1]), None
    if in_turn:
        output = multiply_together(reader.member, x, inputs, bias, product.order)
    if output is None:
        output = product.multiply(inputs, bias, x.dtype)
    return output.view(*x.shape[:-1], shape[0])


def _linears(
    x: Tensor,
    frames: Sequence[Tensor],
    dtype: torch.dtype,
    rows: Sequence[int],
    columns: int,
    biases: Sequence[Tensor | None],
) -> list[Tensor]:
    """Fused: `linear` with each of some weights that have so many columns, in a compiled graph. On a device the weights
    of a group that `prepare` has made are one launch, if all of it are here."""
    weights = list(zip(frames, rows, biases, strict=True))
    if x.device.type == "cpu":
        return [linear_on_cpu(x, frame, dtype, (count, columns), bias, "fused") for frame, count, bias in weights]
    places: dict[Group, dict[int, int]] = {}  # by number in the group
    for place, (frame, count, bias) in enumerate(weights):
        _check_place(frame, x, bias)
        reader = ready_to_multiply(frame)
        check_matches(reader, dtype, (count, columns))
        member: Member | None = getattr(reader, "member", None)
        if member is not None and reader.product_for(x, bias, "fused") is not None:
            places.setdefault(member.group, {})[member.number] = place
    found: dict[int, Tensor] = {}
    for group, of_group in places.items():
        parts = group.multiply_all(x.reshape(-1, columns), {k: biases[place] for k, place in of_group.items()})
        found |= {of_group[k]: part.view(*x.shape[:-1], -1) for k, part in enumerate(parts)}
    return [
        found[place] if place in found else linear_on_device(x, frame, dtype, (count, columns), bias, "fused")
        for place, (frame, count, bias) in enumerate(weights)
    ]


def _experts(x: Tensor, frame: Tensor, dtype: torch.dtype, shape: Sequence[int], ids: Tensor) -> Tensor:
    """Fused: row ``x[i]`` times the transpose of matrix ``ids[i]``: (count, rows of a matrix). For as many rows as a
    product takes a launch for each eight, where the frame allows it; else these matrices are decoded."""
    _check_place(frame, x)
    reader = ready_to_multiply(frame)
    check_matches(reader, dtype, shape)
    product = reader.product_for(x, None, "fused")
    if product is not None:
        found: Tensor = product.multiply_each(x, ids, shape[0])
        return found
    return torch.bmm(_rows(frame, dtype, shape, ids), x.unsqueeze(-1)).squeeze(-1)


linear_in_turn = functools.partial(linear_on_device, in_turn=True)


for _key in ("CPU", "CUDA", "PrivateUse1"):
    _library.impl("decode", _decode, _key)
    _library.impl("decode.out", _decode_out, _key)
    _library.impl("rows", _rows, _key)
    _library.impl("linears", _linears, _key)
    _library.impl("linear", linear_on_cpu if _key == "CPU" else linear_on_device, _key)
_library.impl("table", _table, "CPU")
for _key in ("CUDA", "PrivateUse1"):
    _library.impl("experts", _experts, _key)


def _fake_decode(frame: Tensor, dtype: torch.dtype, shape: Sequence[int], first: int = 0) -> Tensor:
    return frame.new_empty(shape, dtype=dtype)


def _fake_decode_out(frame: Tensor, first: int = 0, *, out: Tensor) -> None:
    return None


def _fake_rows(frame: Tensor, dtype: torch.dtype, shape: Sequence[int], indices: Tensor) -> Tensor:
    return frame.new_empty((*indices.shape, *shape[1:]), dtype=dtype)


def _fake_table(frame: Tensor, dtype: torch.dtype, shape: Sequence[int], indices: Tensor) -> Tensor:
    return frame.new_empty(shape, dtype=dtype)


def _fake_experts(x: Tensor, frame: Tensor, dtype: torch.dtype, shape: Sequence[int], ids: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], shape[1]))


def _fake_linear(
    x: Tensor, frame: Tensor, dtype: torch.dtype, shape: Sequence[int], bias: Tensor | None, mode: str
) -> Tensor:
    return x.new_empty((*x.shape[:-1], shape[0]))


def _fake_linears(
    x: Tensor,
    frames: Sequence[Tensor],
    dtype: torch.dtype,
    rows: Sequence[int],
    columns: int,
    biases: Sequence[Tensor | None],
) -> list[Tensor]:
    return [x.new_empty((*x.shape[:-1], count)) for count in rows]


torch.library.register_fake("tensorwire::decode", _fake_decode, lib=_library)
torch.library.register_fake("tensorwire::decode.out", _fake_decode_out, lib=_library)
torch.library.register_fake("tensorwire::rows", _fake_rows, lib=_library)
torch.library.register_fake("tensorwire::table", _fake_table, lib=_library)
torch.library.register_fake("tensorwire::experts", _fake_experts, lib=_library)
torch.library.register_fake("tensorwire::linear", _fake_linear, lib=_library)
torch.library.register_fake("tensorwire::linears", _fake_linears, lib=_library)
