"""tensorwire sync: versions of weights to a store and from it, one module a command."""

from __future__ import annotations

import warnings

import click

from ..._ground.text import escape
from ..group import CommandGroup


@click.group(cls=CommandGroup, package=__name__, sections={"Commands": ("publish", "follow", "status")})
def command() -> None:
    """Ship what a training step changed: publish weights to a store, and follow it.

    A store is a directory or a URL. A version in it holds what changed since the one before. A follower makes the new
    weights beside the old ones, and puts them in place in one short step.

    \b
    Example:
      tensorwire sync publish step-1000 s3://bucket/run
      tensorwire sync follow s3://bucket/run served --exec "python reload.py"
    """
    warnings.formatwarning = _in_a_line


def _in_a_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as errors are printed: where in our source it was raised tells a user nothing."""
    return f"tensorwire: {escape(str(message))}\n"
