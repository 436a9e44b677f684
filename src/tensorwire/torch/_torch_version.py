"""Raises ImportError, in words that help, where torch is missing or too old for this package: import it first."""

from __future__ import annotations

import re

MIN_VERSION = (2, 4)
_NEEDS = "compressed tensors (tensorwire.torch) need PyTorch 2.4 or later"
_ADVICE = "pip install -U torch"

try:
    import torch
except ImportError as error:
    raise ImportError(f"{_NEEDS}, which cannot be imported: {error}; {_ADVICE}") from error


def check_version(version: str) -> None:
    """ImportError for a version of torch that is too old; a name that is no version passes."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < MIN_VERSION:
        raise ImportError(f"{_NEEDS}, got {version}; {_ADVICE}")


check_version(str(torch.__version__))
