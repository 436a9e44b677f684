"""tensorwire-job agent"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import click

from tensorwire._ground.text import escape

from . import arguments

_POLL_SECONDS = 1.0


@click.command()
@click.option("--analyzer", required=True, metavar="HOST:PORT", help="Address of the analyzer of the job.")
@arguments.key_option
@arguments.dir_option()
@click.option("--node", default=socket.gethostname, metavar="NAME", help="Name of this node; by default its host name.")
def command(analyzer: str, key_file: Path, directory: Path | None, node: str) -> None:
    """Report on the ranks of this node to the analyzer of their job.

    Run one on each node, as the user who runs the ranks, before or after the ranks start. The agent connects again to
    an analyzer that was away, and says on standard error what it does. It runs until you end it with Ctrl-C or
    SIGTERM.

    \b
    Example:
      tensorwire-job agent --analyzer node0:29450 --key-file job.key
    """
    address = _address(analyzer)
    from ..node.agent import run_agent
    from ..protocol.connection import read_key
    from ..service.job_directory import find_directory, root_of

    key = read_key(key_file)
    with arguments.until_ended():
        found = find_directory(directory)
        if found is None:
            _log(f"no pages of ranks in {root_of(directory)} yet")
        while found is None:
            time.sleep(_POLL_SECONDS)
            found = find_directory(directory)
        run_agent(found, address, key, node=node, log=_log)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--analyzer: expected HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _log(text: str) -> None:
    print(f"tensorwire-job: {time.strftime('%H:%M:%S')} {escape(text)}", file=sys.stderr, flush=True)
