"""Run a program after `tensorwire.torch.install`, otherwise as Python would run it.

python -m tensorwire.torch script.py ARGS
python -m tensorwire.torch -m package.module ARGS
torchrun ... -m tensorwire.torch train.py ARGS
"""

from __future__ import annotations

import sys

from .._ground.launcher import launch
from .installed import install

_USAGE = """usage: python -m tensorwire.torch (SCRIPT | -m MODULE) [ARGS]

Runs a program that reads compressed files as if they were not: with
tensorwire.torch.install() called before its first line.

Example:
  python -m tensorwire.torch -m lm_eval --model hf --model_args pretrained=MODEL.tensorwire"""


def main(arguments: list[str]) -> None:
    """Runs what `arguments` say as ``__main__``; ends as that ends."""
    launch(arguments, _USAGE, __file__, _begin)


def _begin() -> None:
    try:
        install()
    except ImportError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
