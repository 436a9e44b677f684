"""A warning where a compressed model is trained as a dense one is."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from torch.optim import Optimizer

_seen: WeakSet[Optimizer] = WeakSet()


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Warn, once for each optimizer, where dense weights in the place of compressed ones would be trained.

    That is so for those that were last asked to train. A model that was frozen, as PEFT does it, was asked not to.
    """
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    frozen = sum(isinstance(p, CompressedTensor) and p._asked_to_train for p in parameters)
    if frozen:
        warnings.warn(
            f"the optimizer does not train the {frozen} of its {len(parameters)} parameters that are compressed, since "
            "these are frozen: call model.requires_grad_(False) and train an adapter, or model.requires_grad_(), which "
            "makes them dense",
            stacklevel=3,
        )


register_optimizer_step_pre_hook(_before_step)
