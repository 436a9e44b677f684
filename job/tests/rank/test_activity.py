"""The activity of the main thread, by its stack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from job.tests.support.probe_jobs import PROBE, environment, run
from tensorwire_job.rank.activity import main_activity


@pytest.mark.parametrize(("source", "activity"), [("", "recv from any source"), (", group_src=1", "")])
def test_a_receive_from_any_source_is_seen(tmp_path: Path, source: str, activity: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import time
import torch
import torch.distributed as dist
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe
class Waits:
    def wait(self):
        time.sleep(1.5)
        print(repr(read_page(probe._probe._path).activity))
        raise SystemExit
dist.distributed_c10d.irecv = lambda *args, **kwargs: Waits()
dist.recv(torch.ones(4){source})
""")
    ran = run([*PROBE, str(script)], environment(tmp_path / "pages", RANK="3", WORLD_SIZE="8"))
    assert ran.stdout == f"{activity!r}\n", ran.stderr


def test_a_module_that_is_imported_does_nothing_yet() -> None:
    source = "seen = main_activity()\ndef translate():\n    return main_activity()\n"
    names: dict[str, str | Callable[[], str]] = {"main_activity": main_activity}
    exec(compile(source, "/lib/torch/_dynamo/symbolic_convert.py", "exec"), names)
    assert names["seen"] == ""
    translate = names["translate"]
    assert callable(translate)
    assert translate() == "torch.compile"
