"""python -m job.tests.faults.programs MODULE FUNCTION [ARGUMENT...]: one rank of a program."""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial

from . import small_training


def main() -> None:
    _, module, name, *arguments = sys.argv
    program = importlib.import_module(f"{__package__}.{module}")
    values = (json.loads(text) if text[0].isdigit() else text for text in arguments)
    getattr(program, "run", small_training.run)(partial(getattr(program, name), *values))


if __name__ == "__main__":
    main()
