"""Views of a whole weight, as torch makes them when it multiplies. Products decode what they need of them, all other
operations the whole weight. Writes to them are refused, as they would be lost in a dense copy.

Except under inference_mode, ``linear`` is no operation of torch's own but a transpose of the weight and a product, to
which autograd, torch.func and vmap are applied one by one. They keep a view of the weight for later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from ..products.kind import Strides, strides_of
from ..products.linear import MAX_FUSED_INPUT_ROWS
from .lazy import LazyTensor

if TYPE_CHECKING:
    from torch import Tensor

aten = torch.ops.aten


class View(LazyTensor):
    """A view of a compressed tensor: its transpose, another shape, or what torch makes of these.

    Attributes:
        weight: the compressed tensor.
    """

    weight: Any
    _of: Any
    _made: tuple[Any, tuple[Any, ...]]
    """The operation that makes it of `_of`, and its arguments."""

    @staticmethod
    def __new__(cls, of: Any, func: Any, arguments: tuple[Any, ...]) -> View:
        shape, strides = of.shape[::-1], of.stride()[::-1]
        if func is not aten.t.default:  # of each product
            like = func(torch.empty_strided(of.shape, of.stride(), dtype=of.dtype, device="meta"), *arguments)
            shape, strides = like.shape, like.stride()
        view = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=of.dtype, device=of.device, storage_size=0
        )
        view.weight = of.weight if isinstance(of, View) else of
        view._of, view._made = of, (func, arguments)
        return cast("View", view)

    def decode(self) -> Tensor:
        """The same view of the dense tensor."""
        func, arguments = self._made
        return cast("Tensor", func(self._of.decode(), *arguments))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """It is pickled as the dense tensor."""
        return self.decode().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.decode()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"View(shape={tuple(self.shape)}, of={self.weight!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_of"], self._made

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Any], context: Any, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> View:
        return View(inner["_of"], *context)


def view_by(func: Any) -> Callable[..., View]:
    """The handler of an operation whose result is a view again."""
    return lambda of, *arguments: View(of, func, arguments)


def _is_transpose(view: Any) -> bool:
    """Whether it is the transpose of its weight, or that one again and again in a batch."""
    if not isinstance(view, View) or view.weight.dim() != 2:
        return False
    rows, columns = view.weight.shape
    batch = zip(view.shape[:-2], view.stride()[:-2], strict=True)
    again = all(size == 1 or stride == 0 for size, stride in batch)
    return again and view.shape[-2:] == (columns, rows) and view.stride()[-2:] == (1, columns)


def _mm(x: Any, weight: Any) -> Any:
    return weight.weight._linear(x, None) if _is_transpose(weight) else NotImplemented


def _addmm(bias: Any, x: Any, weight: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if not _is_transpose(weight) or bias.shape != weight.shape[1:] or (beta, alpha) != (1, 1):
        return NotImplemented
    return weight.weight._linear(x, bias)


def _bmm(x: Any, weight: Any) -> Any:
    """Torch makes this of a product if the inputs do not lie one behind the other."""
    if not _is_transpose(weight):
        return NotImplemented
    fused = weight.weight.linear_mode == "fused" and x.shape[0] * x.shape[1] <= MAX_FUSED_INPUT_ROWS
    if type(x) is torch.Tensor:  # in a graph its shape has symbols
        if x.shape[:2] == (1, 1):  # with the strides that it had, of which torch keeps one
            x = x.as_strided(x.shape, (2 * x.shape[2], 1, x.stride(2)))
        if strides_of(x.shape, x.stride()) is Strides.APART:
            return weight.weight._linear(x, None)
    return weight.weight._linear(x, None) if fused else NotImplemented


def _grouped_mm(x: Any, weight: Any, offs: Any = None, *options: Any, **more: Any) -> Any:
    """Products of groups of rows, each with a matrix of its own, such as experts. On the CPU only the matrices of
    groups that have rows are decoded, into a table that is zero elsewhere. A device is not waited for: all are."""
    if not isinstance(weight, LazyTensor) or weight.dim() != 3 or weight.device.type != "cpu":
        return NotImplemented
    if type(offs) is not torch.Tensor or type(x) is not torch.Tensor or torch.compiler.is_compiling():
        return NotImplemented
    table = _with_matrices(weight, (offs.diff(prepend=offs.new_zeros(1)) > 0).nonzero().reshape(-1))
    return NotImplemented if table is None else aten._grouped_mm(x, table, offs, *options, **more)


def _with_matrices(weight: Any, numbers: Tensor) -> Tensor | None:
    """The dense weight, or its matrices transposed, with these matrices decoded; None if it is another view."""
    if not isinstance(weight, View):
        if isinstance(weight._inner, LazyTensor):  # of another dtype, as under autocast
            return None
        return cast("Tensor", torch.ops.tensorwire.table(weight.frame, weight.dtype, weight.shape, numbers))
    func, arguments = weight._made
    if func is not aten.transpose.int or 0 in (arguments[0] % 3, arguments[1] % 3) or isinstance(weight._of, View):
        return None
    table = _with_matrices(weight._of, numbers)
    return None if table is None else cast("Tensor", func(table, *arguments))


VIEWS = (
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.view.default,
    aten.as_strided.default,
)
"""The operations that give a view of a whole tensor; `fill_diagonal_` writes through `as_strided`."""

GROUPED = {aten._grouped_mm.default: _grouped_mm} if hasattr(aten, "_grouped_mm") else {}
"""Since torch 2.6."""

View._operations = {
    **{func: view_by(func) for func in (*VIEWS, aten.alias.default, aten.detach.default)},
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    **GROUPED,
}
