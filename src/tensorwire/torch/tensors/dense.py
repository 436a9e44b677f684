"""How a lazy tensor becomes dense where something is asked of it that a frame cannot give: memory, or to be trained.

The object stays: all that hold it, such as modules with a tied weight, hold the dense tensor then.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from torch import Tensor

_OURS = {"_elsewhere", "_held", "_is_param", "linear_mode", "_asked_to_train", "weight", "_of", "_made"}
_memories: Any = WeakTensorKeyDictionary()
"""The tensor that became dense last of each frame, weakly, with its version."""


def become_dense(tensor: Any) -> None:
    """In the place of a tensor. Tensors of one frame share memory, as tied weights do: what saves a model tells by it
    that they are tied."""
    with torch.inference_mode(False):  # to be trained, or saved, elsewhere
        frame = getattr(tensor, "_inner", tensor)
        first, version = _memories.get(frame, (lambda: None, 0))
        found = first()
        dense = tensor.decode() if found is None or found._version != version else found.detach()
        _exchange(tensor, dense)
        if frame is not tensor:
            _memories[frame] = weakref.ref(tensor), tensor._version


def become_trainable(parameter: Any) -> None:
    """In the place of a parameter. Nothing changes if it is offloaded, or while an autograd graph still needs the
    compressed one."""
    if parameter._elsewhere is not None:
        return
    with torch.inference_mode(False):
        dense = torch.nn.Parameter(parameter.decode())
        with suppress(RuntimeError):
            _exchange(parameter, dense)


def _exchange(tensor: Any, dense: Tensor) -> None:
    given = {name: value for name, value in vars(tensor).items() if name not in _OURS}
    torch.utils.swap_tensors(tensor, dense)
    vars(tensor).update(given)
