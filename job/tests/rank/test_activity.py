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


def test_a_module_that_is_imported_does_nothing_yet() -> None:
    source = "seen = main_activity()\ndef translate():\n    return main_activity()\n"
    names: dict[str, str | Callable[[], str]] = {"main_activity": main_activity}
    exec(compile(source, "/lib/torch/_dynamo/symbolic_convert.py", "exec"), names)
    assert names["seen"] == ""
    translate = names["translate"]
    assert callable(translate)
    assert translate() == "torch.compile"
