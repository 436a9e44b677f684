"""Facts from /proc and cgroups, against a process whose work is known."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorwire_job.page import process
from tests.support.waiting import wait_for

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(60)"
Start = "Callable[[str], subprocess.Popen[bytes]]"


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    children = []

    def run(code: str) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE))
        return children[-1]

    yield run
    for child in children:
        child.kill()
        child.communicate()


def state(pid: int) -> str:
    stat = process.read_stat(pid)
    assert stat is not None
    return stat.state


def test_states_of_a_life(start: Start) -> None:
    child = start(SLEEP)
    wait_for(lambda: state(child.pid) == "S")
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(child.pid) == "T")
    stopped = process.read_stat(child.pid)
    assert stopped is not None
    assert stopped.is_stopped
    assert stopped.is_alive
    child.kill()
    wait_for(lambda: state(child.pid) == "Z")  # until its parent waits for it
    zombie = process.read_stat(child.pid)
    assert zombie is not None
    assert not zombie.is_alive
    assert zombie.start_ticks == stopped.start_ticks
    child.wait()
    assert process.read_stat(child.pid) is None


def test_start_tells_processes_apart(start: Start) -> None:
    own = process.read_stat(os.getpid())
    child = process.read_stat(start(SLEEP).pid)
    assert own is not None
    assert child is not None
    assert child.start_ticks >= own.start_ticks
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 <= uptime - child.start_ticks / os.sysconf("SC_CLK_TCK") < 5
    assert -1 < time.time() - process.started(child.start_ticks) < 60


def test_the_parent_of_a_process(start: Start) -> None:
    assert process.parent(start(SLEEP).pid) == os.getpid()
    assert process.parent(2**22 + 1) == 0, "there is none of this pid"


def test_name_of_the_program_confuses_nothing(start: Start) -> None:
    name = ") R 1 2 (x"
    child = start(f"open('/proc/self/comm', 'w').write({name!r}); {SLEEP}")
    wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text() == name + "\n")
    wait_for(lambda: state(child.pid) == "S")


def test_cpu_time_of_a_busy_and_an_idle_process(start: Start) -> None:
    children = [start(f"print(flush=True)\n{code}") for code in (SPIN, SLEEP)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # it has started

    def cpu_seconds() -> list[float]:
        return [stat.cpu_seconds for child in children if (stat := process.read_stat(child.pid)) is not None]

    before, own = cpu_seconds(), os.times()
    time.sleep(0.5)
    wait_for(lambda: cpu_seconds()[0] > before[0] + 0.1)  # when, depends on who else wants the CPU
    busy, idle = (late - early for early, late in zip(before, cpu_seconds(), strict=True))
    assert idle < 0.05
    assert busy < os.times().elapsed - own.elapsed + 0.1


def test_wait_of_processes_that_share_a_cpu(start: Start) -> None:
    cpu = min(os.sched_getaffinity(0))
    pinned = [start(f"import os; os.sched_setaffinity(0, {{{cpu}}})\n{SPIN}") for _ in range(3)]
    clocks = [process.WaitClock(child.pid) for child in pinned]
    time.sleep(0.3)
    before = [clock.read() for clock in clocks]
    time.sleep(1.0)
    waited = [clock.read() - early for clock, early in zip(clocks, before, strict=True)]
    assert 1.2 < sum(waited) < 3.5, "three share one CPU: each waits most of the time"


def test_the_thread_that_waited_longest_counts_ended_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PROC", tmp_path)

    def schedstat(thread: int, waited_ns: int) -> Path:
        path = tmp_path / f"7/task/{thread}/schedstat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"5000000000 {waited_ns} 12\n")
        return path

    clock = process.WaitClock(7)
    schedstat(7, 1_000_000_000)
    ended = schedstat(8, 2_000_000_000)
    assert clock.read() == 2.0
    shutil.rmtree(ended.parent)
    schedstat(7, 1_500_000_000)
    assert clock.read() == 2.5
    schedstat(8, 250_000_000)  # another thread with the number of the first
    assert clock.read() == 2.75
    schedstat(7, 1_900_000_000)
    schedstat(8, 550_000_000)
    assert clock.read() == 3.15, "in no time does a process wait longer than that"


def test_nothing_is_told_of_a_process_that_does_not_exist(start: Start) -> None:
    child = start("")
    child.wait()
    assert process.read_stat(child.pid) is None
    assert process.throttling(child.pid) == process.Throttling()
    assert process.WaitClock(child.pid).read() == 0.0


def test_boot_id_is_the_kernels() -> None:
    text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert process.boot_id().hex() == text.replace("-", "")


@pytest.fixture
def quota() -> Iterator[Path]:
    """A cgroup that may use a tenth of a CPU, of version 1 or 2."""
    for base in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        folder = base / f"tensorwire-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / "cpu.cfs_quota_us").exists():
                (folder / "cpu.cfs_quota_us").write_text("10000")
            elif (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text("10000 100000")
            else:
                continue
            yield folder
            return
        except OSError:
            continue
        finally:
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                try:
                    folder.rmdir()
                    break
                except OSError:  # processes are still in it
                    time.sleep(0.05)
    pytest.skip("no cgroup with a CPU quota can be made here")


def test_throttling_counts_in_a_group_below_one_with_a_quota(quota: Path, start: Start) -> None:
    inner = quota / "inner"
    inner.mkdir()
    child = start(SPIN)
    try:
        (inner / "cgroup.procs").write_text(str(child.pid))
        before = process.throttling(child.pid)
        deadline = time.monotonic() + 60.0  # it is throttled while it spins; a busy machine lets it spin less
        while (after := process.throttling(child.pid)).seconds - before.seconds <= 0.3:
            assert time.monotonic() < deadline, (before, after)
            time.sleep(0.05)
        assert after.num_throttled - before.num_throttled >= 3
    finally:
        child.kill()
        child.wait()
        time.sleep(0.05)
        inner.rmdir()


# The layout of other machines.

CPU_V1 = "25 24 0:22 / {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "30 24 0:27 / {root}/unified rw - cgroup2 cgroup2 rw\n"
V2_OF_CONTAINER = "30 24 0:27 /pods/a {root}/unified rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounts", "cgroup", "stats", "expected"),
    [
        (V2, "0::/job/rank\n", {"unified/job/rank": "nr_throttled 2\nthrottled_usec 500000\n"}, (2, 0.5)),
        (
            V2,
            "0::/job/rank\n",
            {
                "unified/job/rank": "usage_usec 7\nnr_throttled 1\nthrottled_usec 250000\n",
                "unified/job": "nr_throttled 4\nthrottled_usec 1000000\n",
                "unified": "usage_usec 9\n",
            },
            (5, 1.25),
        ),
        (CPU_V1, "3:cpu,cpuacct:/job\n0::/x\n", {"cpu/job": "nr_throttled 3\nthrottled_time 1500000000\n"}, (3, 1.5)),
        (CPU_V1 + V2, "3:cpu:/\n0::/x\n", {"cpu": "nr_throttled 1\nthrottled_time 0\n"}, (1, 0.0)),
        (V2_OF_CONTAINER, "0::/pods/a/b\n", {"unified/b": "nr_throttled 6\nthrottled_usec 1\n"}, (6, 1e-6)),
        (V2_OF_CONTAINER, "0::/../other\n", {"unified": "nr_throttled 8\nthrottled_usec 1\n"}, (8, 1e-6)),
        ("", "0::/job\n", {}, (0, 0.0)),
        (
            "31 24 0:40 / /mnt rw - tmpfs  rw\n" + V2,
            "0::/job\n",
            {"unified/job": "nr_throttled 7\nthrottled_usec 0\n"},
            (7, 0.0),
        ),
        (V2, "0::/job\n", {"unified/job": "garbage\n\nnr_throttled x\n"}, (0, 0.0)),
    ],
)
def test_throttling_of_cgroup_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, cgroup: str, stats: dict[str, str], expected: object
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "1").mkdir()
    (proc / "self/mountinfo").write_text(mounts.format(root=tmp_path))
    (proc / "1/cgroup").write_text(cgroup)
    for folder, text in stats.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.stat").write_text(text)
    monkeypatch.setattr(process, "_PROC", proc)
    for cached in (process._mounts, process._cpu_cgroups):
        cached.cache_clear()
    try:
        found = process.throttling(1)
    finally:
        for cached in (process._mounts, process._cpu_cgroups):
            cached.cache_clear()
    assert (found.num_throttled, found.seconds) == pytest.approx(expected)
