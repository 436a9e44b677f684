"""The stacks of a suspect's threads in the order in which they are read."""

from __future__ import annotations

_DULL = ("tensorwire/diagnosis/rank/probe.py", "<no Python frame>")


def for_reader(stack: str) -> str:
    """The thread that runs the script first; the probe's own, and those that run no Python, are left out.

    Args:
        stack: as `faulthandler` writes it: threads with an empty line between them, the newest first. Other texts stay
            as they are.
    """
    threads = [thread.strip("\n") for thread in stack.split("\n\n")]
    shown = [thread for thread in threads if "<module>" in thread or not any(dull in thread for dull in _DULL)]
    shown.sort(key=lambda thread: "<module>" not in thread)
    return "\n\n".join(shown or threads)
