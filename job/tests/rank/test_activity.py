"""The activity of the main thread, by its stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tensorwire_job.rank.activity import main_activity

if TYPE_CHECKING:
    from subprocess import CompletedProcess


@pytest.mark.xdist_group("probe")
def test_a_receive_from_any_source_is_seen(run_script: Callable[..., CompletedProcess[str]]) -> None:
    text = """
import contextlib
import time
import torch
import torch.distributed as dist
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe
def page():
    return read_page(probe._probe._path)
class Waits:
    def wait(self):
        last = page().header.heartbeats + 2 * probe._ACTIVITY_EVERY
        while page().header.heartbeats < last:
            time.sleep(0.01)
        print(repr(page().activity))
        raise LookupError
dist.distributed_c10d.irecv = lambda *args, **kwargs: Waits()
for source in ({}, {"group_src": 1}):
    with contextlib.suppress(LookupError):
        dist.recv(torch.ones(4), **source)
"""
    ran = run_script(text)
    assert ran.stdout == "'recv from any source'\n''\n", ran.stderr


@pytest.mark.xdist_group("probe")
def test_what_a_rank_waited_in_when_it_was_told_to_end_stays(run_script: Callable[..., CompletedProcess[str]]) -> None:
    """The signal takes the main thread out of its wait, and what the job hung in is to be known once it is over."""
    text = """
import contextlib
import os
import signal
import time
import torch
import torch.distributed as dist
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe
def look():
    last = page().header.heartbeats + 2 * probe._SIGNALS_EVERY
    while page().header.heartbeats < last:
        time.sleep(0.01)
    return page().activity
def page():
    return read_page(probe._probe._path)
def end(*_):
    raise LookupError
class Waits:
    def wait(self):
        print(repr(look()))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
probe.HEARTBEAT_SECONDS = 0.05
signal.signal(signal.SIGINT, end)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.distributed_c10d.irecv = lambda *args, **kwargs: Waits()
with contextlib.suppress(LookupError):
    dist.recv(torch.ones(4))
print(repr(look()))
probe._ASKED_SECONDS = 0.0
print(repr(look()))
"""
    ran = run_script(text)
    assert ran.stdout == "'recv from any source'\n'recv from any source'\n''\n", ran.stderr


def test_a_module_that_is_imported_does_nothing_yet() -> None:
    source = "seen = main_activity()\ndef translate():\n    return main_activity()\n"
    names: dict[str, str | Callable[[], str]] = {"main_activity": main_activity}
    exec(compile(source, "/lib/torch/_dynamo/symbolic_convert.py", "exec"), names)
    assert names["seen"] == ""
    translate = names["translate"]
    assert callable(translate)
    assert translate() == "torch.compile"
