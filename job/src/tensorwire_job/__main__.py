"""Run a training script with the probe attached, otherwise as Python would run it.

python -m tensorwire_job train.py ARGS
python -m tensorwire_job -m package.train ARGS
torchrun ... -m tensorwire_job train.py ARGS
"""

from __future__ import annotations

import sys

from tensorwire._ground.launcher import launch

from .rank import probe

_USAGE = """usage: python -m tensorwire_job (SCRIPT | -m MODULE) [ARGS]

Runs a training script with the probe, so that tensorwire-job diagnose can name the
rank that hangs or slows its job.

Example:
  torchrun --nproc-per-node 4 -m tensorwire_job train.py"""


def main(arguments: list[str]) -> None:
    """Runs what `arguments` say as ``__main__``; ends as that ends."""
    try:
        launch(arguments, _USAGE, __file__, probe.attach)
    except SystemExit as error:
        probe.set_exit_reason(f"exit {_status(error.code)}")
        raise
    probe.set_exit_reason("exit 0")


def _status(code: object) -> object:
    return 0 if code is None else code if isinstance(code, int) else 1


if __name__ == "__main__":
    main(sys.argv[1:])
