"""Matrices that were taken out of a compressed tensor by number, such as the experts that tokens are sent to.

In mode *fused* on a device they stay compressed until they are multiplied, each with an input of its own. All other
operations decode them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from .lazy import LazyTensor

if TYPE_CHECKING:
    from torch import Tensor

aten = torch.ops.aten
tensorwire = torch.ops.tensorwire


class Matrices(LazyTensor):
    """``tensor[ids]`` of a tensor of three dimensions."""

    _frame: Tensor
    _ids: Tensor
    _of: torch.Size

    @staticmethod
    def __new__(cls, frame: Tensor, dtype: torch.dtype, shape: Sequence[int], ids: Tensor) -> Matrices:
        """
        Args:
            frame, dtype, shape: of the tensor.
            ids: numbers of matrices, one dimension, none negative.
        """
        made = torch.Tensor._make_wrapper_subclass(
            cls, (ids.shape[0], *shape[1:]), dtype=dtype, device=frame.device, requires_grad=False
        )
        made._frame, made._ids, made._of = frame, ids, torch.Size(shape)
        return cast("Matrices", made)

    def decode(self) -> Tensor:
        """Dense matrices."""
        return cast("Tensor", tensorwire.rows(self._frame, self.dtype, self._of, self._ids))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """They are pickled as dense ones."""
        return self.decode().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.decode()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Matrices(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_frame", "_ids"], (self.dtype, self._of)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], context: Any, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> Matrices:
        dtype, shape = context
        return Matrices(inner["_frame"], dtype, shape, inner["_ids"])


def _bmm(matrices: Any, x: Any) -> Any:
    if not isinstance(matrices, Matrices) or isinstance(x, LazyTensor) or x.dtype != matrices.dtype:
        return NotImplemented
    if x.shape != (matrices.shape[0], matrices.shape[2], 1):
        return NotImplemented
    return tensorwire.experts(x.squeeze(-1), matrices._frame, matrices.dtype, matrices._of, matrices._ids).unsqueeze(-1)


Matrices._operations = {
    aten.bmm.default: _bmm,
    aten.detach.default: lambda of: Matrices(of._frame, of.dtype, of._of, of._ids),
    aten.alias.default: lambda of: Matrices(of._frame, of.dtype, of._of, of._ids),
}
