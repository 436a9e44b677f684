"""tensorwire sync: publish, follow and status, and what they tell."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire import load_file, save_file
from tensorwire.sync import Publisher
from tests.support.command_line import COMMAND, forked, terminal
from tests.support.sync_runs import contents, stepped, weights
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.command_line import Run


@pytest.fixture
def steps(tmp_path: Path) -> list[Path]:
    first = weights()
    for name, held in (("first", first), ("second", stepped(first, 1))):
        save_file(held, tmp_path / name)
    return [tmp_path / "first", tmp_path / "second"]


def test_versions_are_published_and_followed(run: Run, steps: list[Path], tmp_path: Path) -> None:
    store, served, told = tmp_path / "store", tmp_path / "served", tmp_path / "told"
    command = ["--once", "--exec", f"sh -c 'echo $TENSORWIRE_VERSION >> {told}'"]
    ran = run("sync", "publish", steps[0], store)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("version 000000: an anchor, ")
    ran = run("sync", "follow", store, served, *command)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("version 000000: ")
    assert contents(load_file(served)) == contents(weights())
    published = run("sync", "publish", steps[1], store, "--json").json
    assert (published["version"], published["is_anchor"]) == (1, False)
    followed = run("sync", "follow", store, served, *command, "--json").json
    assert (followed["version"], followed["num_changed"]) == (1, published["num_changed"])
    assert contents(load_file(served)) == contents(stepped(weights(), 1))
    ran = run("sync", "follow", store, served, *command)
    assert (ran.code, ran.out, ran.err) == (0, "", "tensorwire: already at version 000001\n")
    assert told.read_text() == "0\n1\n"


def test_a_command_that_fails_ends_follow(run: Run, steps: list[Path], tmp_path: Path) -> None:
    run("sync", "publish", steps[0], tmp_path / "store")
    ran = run("sync", "follow", tmp_path / "store", tmp_path / "served", "--exec", "false")
    assert ran.code == 1
    assert "version 000000 is in place, and 'false' ended with 1" in ran.err
    ran = run("sync", "follow", tmp_path / "store", tmp_path / "served", "--exec", "no-such-program-at-all")
    assert ran.code == 2


def test_a_signal_that_ends_follow_waits_for_the_command(run: Run, steps: list[Path], tmp_path: Path) -> None:
    """It may have paused a server, and resumes it in the end."""
    store, told, go = tmp_path / "store", tmp_path / "told", tmp_path / "go"
    run("sync", "publish", steps[0], store)
    # It begins late: `follow` waits for it by then, and does not start it any more.
    script = f"sleep 0.5; echo pause >> {told}; while [ ! -e {go} ]; do sleep 0.05; done; echo resume >> {told}"
    command = [*COMMAND, "sync", "follow", str(store), str(tmp_path / "served"), "--exec", f"sh -c '{script}'"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(told.exists, 60)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        go.touch()
        assert process.wait(60) == 143
    assert told.read_text() == "pause\nresume\n"


def test_a_store_without_versions_is_told(
    run: Run, steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a name that was misspelt."""
    store, served = tmp_path / "store", tmp_path / "served"
    ran = run("sync", "follow", store, served, "--once")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"tensorwire: {str(store)!r}: the store has no version; publish one, or correct the name\n"
    assert not served.exists()
    monkeypatch.setattr("time.sleep", lambda seconds: Publisher(store).publish(weights()))
    ran = run("sync", "follow", store, served, "--exec", "false")
    assert ran.err.startswith(f"tensorwire: {store} has no version yet: waiting\n")
    assert "version 000000 is in place" in ran.err
    shutil.rmtree(store)
    assert run("sync", "follow", store, served, "--once").code == 1
    assert contents(load_file(served)) == contents(weights())


def test_a_warning_is_a_line(run: Run, steps: list[Path], tmp_path: Path) -> None:
    """It says what was found, and not where in our source it was raised."""
    store, served = tmp_path / "store", tmp_path / "served"
    run("sync", "publish", steps[0], store)
    run("sync", "publish", steps[1], store, "--base", steps[0])
    run("sync", "follow", store, served, "--once")
    shutil.rmtree(store)
    run("sync", "publish", steps[0], store)
    command = [*COMMAND, "sync", "follow", str(store), str(served), "--once"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr.startswith("tensorwire: the store was put back or begun anew: ")
    assert ran.stderr.endswith("\ntensorwire: already at version 000001\n")
    assert ran.stderr.count("\n") == 2
    command = [*COMMAND, "sync", "publish", str(steps[1]), str(store), "--base", str(steps[1])]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("version 000001: 2 tensors, ")  # beside what the store holds, not beside OLD
    assert ran.stderr.startswith("tensorwire: base is not what version 000000 holds, the newest one: what differs is ")


def test_anchors_are_sent_where_they_are_due_or_asked_for(run: Run, steps: list[Path], tmp_path: Path) -> None:
    kinds = [
        run("sync", "publish", steps[0], tmp_path / "store", "--json", *options).json["is_anchor"]
        for options in ([], [], ["--anchor"], [], ["--anchor-every", "2", "--keep", "1"])
    ]
    assert kinds == [True, False, True, False, True]
    assert sorted(path.name for path in (tmp_path / "store").glob("weight_*")) == ["weight_v000004"]


def test_small_files_travel_when_asked_for(run: Run, steps: list[Path], tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    model = tmp_path / "model"
    model.mkdir()
    save_file(weights(), model / "model.safetensors")
    (model / "config.json").write_text("{}")
    ran = run("sync", "publish", model / "model.safetensors", store, "--small-files")
    assert (ran.code, "expected a directory as DIR with --small-files" in ran.err) == (2, True)
    run("sync", "publish", model, store, "--small-files")
    run("sync", "publish", model, store)
    run("sync", "follow", store, served, "--once")
    assert (served / "config.json").read_text() == "{}"


def test_a_bar_is_drawn_while_a_version_is_made(steps: list[Path], tmp_path: Path) -> None:
    """And none where there is nothing to make: one may be waited for for days."""
    store, served = tmp_path / "store", tmp_path / "served"
    for arguments, has_bar in (
        (["publish", steps[0], store], True),
        (["follow", store, served, "--once"], True),
        (["follow", store, served, "--once"], False),
    ):
        with terminal() as (stderr, screen):
            streams = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": stderr}
            ran = forked("sync", *arguments, environment={"TERM": "xterm-256color", "COLUMNS": "80"}, **streams)
        assert ran.returncode == 0
        assert ("\x1b[?25l" in screen.decode()) is has_bar


def test_all_versions_are_listed(run: Run, steps: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run("sync", "status", store, "--versions", "--json").json["versions"] == []
    for step, options in ((steps[0], []), (steps[1], []), (steps[0], ["--anchor"])):
        run("sync", "publish", step, store, *options)
    for number in range(3):
        os.utime(store / f"weight_v{number:06d}" / "model.safetensors.index.json", (1e9 + number, 1e9 + number))
    sizes = [sum(path.stat().st_size for path in store.glob(f"*{number}/*.safetensors")) for number in range(3)]
    listed = run("sync", "status", store, "--versions", "--json").json["versions"]
    assert [list(each.values()) for each in listed] == [
        [2, True, 7, sizes[2], "2001-09-09T01:46:42+00:00"],
        [1, False, 2, sizes[1], "2001-09-09T01:46:41+00:00"],
        [0, True, 7, sizes[0], "2001-09-09T01:46:40+00:00"],
    ]
    lines = run("sync", "status", store, "--versions").out.splitlines()
    assert lines[0].split() == ["version", "kind", "tensors", "size", "published"]
    assert lines[3].split()[:3] == ["000001", "delta", "2"]
    assert lines[3].endswith("2001-09-09 01:46:41 UTC")
    assert lines[-1].startswith("a new follower fetches")


def test_status_tells_what_a_new_follower_fetches(run: Run, steps: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    for says in ("nothing is there", "no version"):
        ran = run("sync", "status", store)
        assert (ran.code, ran.out) == (1, f"{store}: {says}; publish a version, or correct the name\n")
        store.mkdir(exist_ok=True)
    run("sync", "publish", steps[0], store)
    run("sync", "publish", steps[1], store, "--base", steps[0])
    status = run("sync", "status", store, "--json").json
    sizes = [path.stat().st_size for path in store.glob("*/*.safetensors")]
    assert (status["version"], status["anchor"], status["nbytes"], status["missing"]) == (1, 0, sum(sizes), [])
    assert "version 000001 of lineage" in run("sync", "status", store).out
    next((store / "weight_v000000").glob("*.safetensors")).unlink()
    ran = run("sync", "status", store, "--json")
    assert (ran.code, json.loads(ran.out)["missing"]) == (1, [0])
