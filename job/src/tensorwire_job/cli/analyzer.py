"""tensorwire-job analyzer"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli import options

from ..model import Thresholds
from . import arguments, verdict

if TYPE_CHECKING:
    from ..model import Finding
    from ..service.service import View


@click.command()
@arguments.key_option
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Listen at this address; agents of other nodes need one that they can reach.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=29450,
    show_default=True,
    help="Listen at this port; 0 takes a free one.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus at this port and the same address.",
)
@click.option(
    "state_directory",
    "--analyzer-dir",
    type=options.NEW_PATH,
    metavar="DIR",
    help="Write findings, the present state and a recording to this directory, for watch, diagnose and report.",
)
@arguments.on_finding_option
@arguments.threshold_options(Thresholds())
@click.option("as_json", "--json", is_flag=True, help="Print each finding as a JSON document on a line of its own.")
def command(
    key_file: Path,
    bind: str,
    port: int,
    metrics_port: int | None,
    state_directory: Path | None,
    on_finding: list[str] | None,
    as_json: bool,
    **thresholds: float,
) -> int:
    """Take the reports of all agents and name the rank.

    Run one for each job, on a machine that all nodes can reach, and tensorwire-job agent on each node. The analyzer
    prints one line for each new finding, and runs until you end it with Ctrl-C or SIGTERM. Exit code 3 if there was a
    finding, else 0.

    \b
    Example:
      (umask 077; head -c 32 /dev/urandom > job.key)
      tensorwire-job analyzer --key-file job.key --bind node0 --analyzer-dir job
      tensorwire-job watch --analyzer-dir job
    """
    limits = arguments.thresholds_of(thresholds)
    from ..protocol.connection import read_key
    from ..protocol.listener import Listener
    from ..service.journal import Journal
    from ..service.service import JobService, run_analyzer

    told: dict[object, Finding] = {}
    shows: list[Callable[[View], None]] = []

    def show(view: View) -> None:
        for finding in view.findings:
            if told.setdefault(finding.identity(), finding) is finding:
                verdict.print_news(finding, as_json=as_json)
        for other in shows:
            other(view)

    listener = Listener(read_key(key_file), bind, port)
    with ExitStack() as stack:
        if metrics_port is not None:
            from ..service.metrics import JobCollector, serve

            collector = JobCollector()
            server = serve(collector, bind, metrics_port)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            shows.append(collector.show)
            _log("metrics", (bind, server.server_port))
        take = stack.enter_context(arguments.finding_command(on_finding, arguments.warn, state_directory))
        shows.append(lambda view: take(view.observation.run_id, view.findings))
        journal = None if state_directory is None else Journal(state_directory, limits)
        _log("agents", listener.address)
        with arguments.until_ended():
            run_analyzer(JobService(listener, limits, journal), show)
    return verdict.exit_code(told.values())


def _log(what: str, address: tuple[str, int]) -> None:
    arguments.warn(f"listening for {what} at {address[0]}:{address[1]}")
