"""Training that somebody ends: one rank alone, or all of a job that hangs, one after another."""

from __future__ import annotations

import itertools
import os
import signal

from .common import case, is_befallen, mark_fault, stay_away
from .small_training import STEPS_BEFORE, Training, start

_SIGNALS = {"interrupted-alone": signal.SIGINT, "hung-up-alone": signal.SIGHUP}


def main() -> None:
    start()
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE and is_befallen():
            if case() in _SIGNALS:
                mark_fault()
                os.kill(os.getpid(), _SIGNALS[case()])
            else:
                stay_away()  # the signals come later, from the runner


if __name__ == "__main__":
    main()
