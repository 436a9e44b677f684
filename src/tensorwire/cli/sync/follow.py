"""tensorwire sync follow"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from ..._ground.text import escape
from .. import options, output
from ..failures import BAD_DATA

if TYPE_CHECKING:
    from pathlib import Path

    from ...sync import Follower, Staged


@click.command()
@click.argument("store", type=options.LOCATION)
@click.argument("directory", metavar="DIR", type=options.NEW_PATH)
@click.option("--once", is_flag=True, help="Take the newest version, if there is a newer one, and end.")
@click.option(
    "--in-place",
    is_flag=True,
    help="Write into the files that stand, so that the disk holds no second copy. A run that ends while it writes "
    "leaves a directory that the next run repairs.",
)
@click.option(
    "--copy",
    "copies",
    is_flag=True,
    help="Have plain files stand in DIR, no links: for engines and file systems that follow none. They are exchanged "
    "one by one.",
)
@click.option(
    "program",
    "--exec",
    metavar="COMMAND",
    callback=lambda context, parameter, value: options.program(value),
    help="Run this command after each version, whose number it gets as TENSORWIRE_VERSION in the environment, such as "
    "to have an engine load DIR again. No shell reads it. If it fails, follow ends. SIGTERM waits until it has ended.",
)
@options.threads_option
@click.option("as_json", "--json", is_flag=True, help="Print a JSON document on a line of its own for each version.")
def command(
    store: Path,
    directory: Path,
    once: bool,
    in_place: bool,
    copies: bool,
    program: list[str] | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Keep a directory of plain safetensors files at the newest version of a store.

    DIR is made if it is not there. Otherwise it holds a version of the store, or no checkpoint. Each version is made in
    a folder of its own below DIR/.tensorwire-sync, and the files of DIR are links to the one that serves, so all files
    change at once. What else stands in DIR stays. Ctrl-C ends it; DIR then holds a whole version, without --in-place.

    A store without a version is waited for, and a line says so; with --once it is an error.

    Exit code 0: --once is done; 1: there is no version, one is damaged, or COMMAND failed.

    \b
    Example:
      tensorwire sync follow s3://bucket/run served --exec "python reload.py"
    """
    from ...storage.locations import locate
    from ...sync import Follower
    from ...sync.store import Store

    if copies and in_place:
        raise click.UsageError("expected --copy or --in-place, got both; leave one out")
    follower = Follower(store, directory, in_place=in_place, copies=copies, threads=threads)
    begins = True
    while True:
        begun = time.perf_counter()
        staged = _staged(follower)
        if staged is None:
            has_version = Store(locate(store)).newest() is not None
            if once and not has_version:  # what a misspelt STORE looks like
                text = "the store has no version; publish one, or correct the name"
                raise FileNotFoundError(errno.ENOENT, text, str(store))
            if not has_version:
                _say(f"{store} has no version yet: waiting")
            elif begins and follower.version is not None:
                _say(f"already at version {follower.version:06d}{'' if once else ': waiting for the next one'}")
            if once:
                return 0
            staged = _staged(follower, timeout=None)
            assert staged is not None
        begins = False
        made = time.perf_counter()
        follower.commit()
        seconds = {"stage": made - begun, "commit": time.perf_counter() - made}
        if as_json:
            output.print_json({"version": staged.version, "num_changed": len(staged.names), "seconds": seconds})
        else:
            changed = output.count(len(staged.names), "tensor")
            output.print_line(f"version {staged.version:06d}: {changed}, committed in {seconds['commit']:.3f} s")
        sys.stdout.flush()
        if program is not None and not _ran(program, staged.version):
            return BAD_DATA
        if once:
            return 0


def _staged(follower: Follower, timeout: float | None = 0) -> Staged | None:
    """The next version, under a bar while it is made, and none while it is waited for."""
    with ExitStack() as stack:
        bars: list[output.Progress | None] = []

        def progress(done: int, total: int, name: str) -> None:
            if not bars:
                bars.append(stack.enter_context(output.progress("follow")))
            if bars[0] is not None:
                bars[0](done, total, name)

        return follower.stage(timeout=timeout, progress=progress)


def _say(text: str) -> None:
    print(f"tensorwire: {escape(text)}", file=sys.stderr, flush=True)


def _ran(program: list[str], version: int) -> bool:
    """Whether the user's command did what it had to."""
    environment = {**os.environ, "TENSORWIRE_VERSION": str(version)}
    # A signal that ends this command waits for the other one, which may have paused a server.
    with subprocess.Popen(program, env=environment, stdin=subprocess.DEVNULL) as process:
        code = process.wait()
    if code:
        _say(f"version {version:06d} is in place, and {program[0]!r} ended with {code}")
    return code == 0
