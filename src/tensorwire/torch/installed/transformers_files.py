"""What Transformers' Trainer takes from an index of shards, without the names of payloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ...files.names import tensor_name


def loading(theirs: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    """`load_sharded_checkpoint`, to which payloads are no names that the model has not. With `strict` a name that it
    has not, or that is missing, is an error once the others are loaded, as in PyTorch's `load_state_dict`."""

    @wraps(theirs)
    def load_sharded_checkpoint(model: Any, folder: Any, strict: bool = True, *arguments: Any, **options: Any) -> Any:
        if not is_on():
            return theirs(model, folder, strict, *arguments, **options)
        found = theirs(model, folder, False, *arguments, **options)
        known = {*model.state_dict(), *found.unexpected_keys}
        found = found._replace(unexpected_keys=[n for n in found.unexpected_keys if tensor_name(n) not in known])
        if strict and (found.missing_keys or found.unexpected_keys):
            raise RuntimeError(f"Error(s) in loading state_dict for {type(model).__name__}\n{found}")
        return found

    return load_sharded_checkpoint
