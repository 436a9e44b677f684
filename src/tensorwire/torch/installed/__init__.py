"""One call after which programs of others read compressed files, and one that undoes it.

This is the one place where functions of other packages are exchanged. It is off until a program asks for it. Nothing
else of the package is imported before.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .installation import Installation

_lock = threading.RLock()  # what is imported meanwhile may call again
_installed: Installation | None = None


def install() -> tuple[str, ...]:
    """Have safetensors, `torch.load` and diffusers read compressed files as if they were dense, and with them what is
    built on them: PEFT, Transformers' Trainer, sentence-transformers and others.

    Functions of other packages are exchanged for the whole process: `safetensors.safe_open` and
    `safetensors.deserialize`, `torch.load`, and those by which diffusers reads a config.json and an index of shards and
    Transformers' Trainer such an index. All modules that hold a function under a name get ours, also those that
    imported it before. Copies elsewhere, such as
    default values of parameters, stay. Files that are not compressed are read by the functions that were there, among
    them those of other packages that have exchanged them. A model that Transformers loads through its own method of
    quantization stays compressed, as without this call.

    A second call looks for modules that hold an original again. Thread-safe; what is being loaded meanwhile is read by
    either.

    Returns:
        The names that are exchanged, such as ``torch.load``.

    Raises:
        ImportError: a package has not what is to be exchanged; the error has its version. Nothing is exchanged then.
    """
    global _installed
    from .installation import Installation

    with _lock:
        if _installed is None:
            _installed = Installation()
        else:
            _installed.exchange.put_in_modules()
        return _installed.exchange.names


def uninstall() -> None:
    """Give all modules their own functions back, those too that were imported meanwhile. Thread-safe.

    A function that another package has exchanged after `install` is left alone, with a warning that names it. What it
    may have kept of ours only calls the original from now on.
    """
    global _installed
    with _lock:
        if _installed is None:
            return
        others, _installed = _installed.take_back(), None
    if others:
        warnings.warn(
            f"left as they are, since other code has exchanged them after tensorwire.torch.install(): "
            f"{', '.join(others)}; what they keep of tensorwire calls only the original from now on",
            stacklevel=2,
        )
