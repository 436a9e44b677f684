"""The stacks of a suspect's threads in the order in which they are read."""

from __future__ import annotations

_PROBE = "tensorwire/diagnosis/probe.py"


def for_reader(stack: str) -> str:
    """The thread that runs the script first, and without the probe's own.

    Args:
        stack: as `faulthandler` writes it: threads with an empty line between them, the newest first. Other texts stay
            as they are.
    """
    threads = [thread.strip("\n") for thread in stack.split("\n\n")]
    shown = [thread for thread in threads if _PROBE not in thread or "<module>" in thread]
    shown.sort(key=lambda thread: "<module>" not in thread)
    return "\n\n".join(shown or threads)
