"""The probe of a rank: a page in shared memory, and a thread that keeps it up to date.

Nothing of it is on the path of an operation, until the agent asks for timing (operation_timing.py). An error in it
costs the job a line on stderr and the probe, never the job.

Environment:
    RANK, WORLD_SIZE, LOCAL_RANK: as torchrun sets them; without RANK the probe waits for init_process_group.
    TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT: identity of the job and the generation of its ranks.
    MASTER_ADDR, MASTER_PORT: identity of a job on several nodes (WORLD_SIZE above LOCAL_WORLD_SIZE) that has no run id.
    TENSORWIRE_PROBE_DIR: the directory of the pages, instead of /dev/shm/tensorwire-<uid>/<run id>.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from tensorwire._ground.copies import not_copied

from ..page import process

HEARTBEAT_SECONDS: Final = 0.2
"""Each takes the interpreter's lock from a thread that works. The pulse of the page does not, and tells of a death."""
_JOIN_SECONDS: Final = 1.0  # the most that the end of the process waits for the thread
_OF_GLOO: Final = re.compile(r"\[[^\]\s]*:\d+\] |\. This is typically caused by a remote worker.*")  # reasons are short
_MAX_FAILURES: Final = 5  # heartbeats in a row that may fail before the probe gives up
_SIGNALS_EVERY: Final = 5  # heartbeats: handlers that the script sets are found so soon
_ACTIVITY_EVERY: Final = 3  # heartbeats
_KEPT_LOOKS: Final = 60  # at activities, for which one is kept that the death of another process has ended
_ASKED_SECONDS: Final = 3.0  # in which a process ends that is asked to, and that does not go on
_OUTLIVED_NS: Final = 60 * 10**9  # a process that works for so long after a signal was not ended by it
TESTED_TORCH: Final = ("2.13",)


def attach() -> None:
    """Let this process be seen. Never raises; a second call does nothing.

    Call it before or after init_process_group, in a forked child again if that is a rank of its own.
    """
    global _probe
    try:
        if _probe is None or _probe.pid != os.getpid():
            _probe = _Probe()
            _probe.start()
    except Exception as error:
        _warn(error)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare what this rank is doing instead of training ("checkpoint", "evaluation"); others wait for it in peace.

    Args:
        name: the first 23 bytes of it are shown. Phases may be nested; the inner one is shown.
    """
    phases = _phases
    phases.append(name)
    _show_phase()
    try:
        yield
    finally:
        phases.remove(name)
        _show_phase()


def set_exit_reason(text: str) -> None:
    """How the script ended, for the page. The first reason given stays."""
    if _probe is not None:
        _probe.set_exit_reason(text, _END)


_END, _FAILURE, _INTERRUPTION = 1, 2, 3  # those of native, which is loaded later
_probe: _Probe | None = None
_phases: list[str] = []


def _show_phase() -> None:
    if _probe is not None:
        _probe.show_phase(next(reversed(_phases), ""))  # in one step: other threads have phases too


def _warn(error: BaseException) -> None:
    text = " ".join(str(error).split())
    with suppress(Exception):
        name = type(error).__name__.lstrip("_")
        print(f"tensorwire-job: the probe is off ({name}: {text})", file=sys.stderr, flush=True)


class _UnknownTorchError(RuntimeError):
    """This torch lacks what the probe needs."""

    def __init__(self, error: Exception) -> None:
        version = getattr(sys.modules.get("torch"), "__version__", "of no version")
        super().__init__(f"torch {version} is not one of those tested, {', '.join(TESTED_TORCH)}: {error}")


class _Probe:
    """All that is attached to this process."""

    __reduce_ex__ = not_copied("a thread and the page of this process", "attach in the other process")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._handle: int | None = None
        self._path: Path | None = None
        self._last_hook = sys.excepthook
        self._sampler: _Sampler | None = None
        self._setup = 0
        self._activity = ""
        self._num_kept = 0
        self._asked = -_ASKED_SECONDS
        self._handler: int | None = None  # Python's own, in C, of SIGINT
        self._num_heartbeats = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorwire probe", daemon=True)

    def start(self) -> None:
        sys.excepthook = self._excepthook
        atexit.register(self._at_exit)
        if "RANK" in os.environ:
            self._create(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))
        self._thread.start()

    def set_exit_reason(self, text: str, kind: int) -> None:
        if self._handle is not None and self.pid == os.getpid():
            _native().exit_reason(self._handle, kind, _cut(text))

    def show_phase(self, text: str) -> None:
        if self._handle is not None:
            _native().phase(self._handle, text.encode("utf-8", "replace"))

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with suppress(Exception):
            text = " ".join(_OF_GLOO.sub("", f"{kind.__name__}: {error}").split()).removesuffix(":")
            self.set_exit_reason(text, _INTERRUPTION if issubclass(kind, KeyboardInterrupt) else _FAILURE)
            if self._sampler is not None and self.pid == os.getpid():
                self._sampler.poll_closely()  # this rank may die of its last call
        self._last_hook(kind, error, trace)

    def _at_exit(self) -> None:
        with suppress(Exception):
            self.set_exit_reason("exit", _END)  # tensorwire_job tells the code of a SystemExit, which is hidden here
            if self.pid == os.getpid():
                self._stop()

    def _stop(self) -> None:
        """Leave no thread in torch's code when the interpreter goes. It ends threads that come back from there for its
        lock, and then C++ that may not throw aborts the process."""
        self._ends.set()
        self._thread.join(_JOIN_SECONDS)
        if self._sampler is not None:
            if not self._thread.is_alive():
                self._sampler.poll_last()
            self._sampler.close()

    def _create(self, rank: int, world_size: int) -> None:
        from ..page import directory as pages
        from ..page import script_file, stack_file
        from ..page.rank_page import read_page

        run_id = _run_id()
        directory = pages.job_directory(run_id)
        pages.make_directory(directory)
        pages.sweep(directory, before_ns=_start_ns(os.getppid()))
        restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        path = pages.page_path(directory, rank, restart_count)
        known = read_page(path)
        if known is None or not known.is_alive:  # what cannot be read is damaged
            pages.remove_page(path)
        handle = _native().create(str(path), run_id, rank, world_size, restart_count)
        self._handle, self._path = handle, path
        _native().start_pulse(handle)
        with suppress(Exception):
            script_file.write(path, sys.argv[0])
        with suppress(Exception):
            stack_file.listen(path)
        self._watch_signals()
        self._watch_signals()  # with the handler that the first time found
        self.show_phase(_phases[-1] if _phases else "")

    def _run(self) -> None:
        """The thread. It waits for torch instead of importing it: a script may do without."""
        failures = 0
        while self.pid == os.getpid() and failures < _MAX_FAILURES and not self._ends.is_set():
            try:
                self._heartbeat()
                failures = 0
            except _UnknownTorchError as error:
                _warn(error)
                return
            except Exception as error:
                failures += 1
                if failures == _MAX_FAILURES:
                    _warn(error)
            self._ends.wait(HEARTBEAT_SECONDS)

    def _watch_signals(self) -> None:
        """Note signals that ask for the end. The lock of the interpreter is held: Python sets no handler meanwhile."""
        found = _native().watch_signals(self._handle, self._handler)
        if self._handler is None and callable(signal.getsignal(signal.SIGINT)):
            self._handler = found

    def _heartbeat(self) -> None:
        self._num_heartbeats += 1
        if self._sampler is not None and _native().is_look_wanted(self._handle):
            self._asked = time.monotonic()
            self._sampler.poll_closely()  # the process is about to end
            _native().look_taken(self._handle)
        distributed = _initialized_distributed()
        if self._handle is not None:
            _native().heartbeat(self._handle)
            self._show_setup(distributed is not None)
            if self._num_heartbeats % _SIGNALS_EVERY == 0:
                self._watch_signals()
            if self._num_heartbeats % _ACTIVITY_EVERY == 0:
                self._show_activity()
        if self._sampler is not None:
            self._sampler.poll()
            return
        if distributed is None:
            return
        if self._handle is None:
            self._create(distributed.get_rank(), distributed.get_world_size())
        if self._handle is not None and self._path is not None:
            try:
                self._sampler = _Sampler(self._handle, self._path)
            except (ImportError, AttributeError) as error:
                raise _UnknownTorchError(error) from None

    def _show_activity(self) -> None:
        """Show the activity while nothing is completed: a rank that trains is not looked at."""
        from ..model import NEW_GROUP
        from .activity import main_activity
        from .file_locks import is_left_by_death

        is_busy = self._sampler is not None and self._sampler.has_completed_some()
        if is_busy:
            _native().outlive_signal(self._handle, _OUTLIVED_NS)
        if self._num_kept < _KEPT_LOOKS and is_left_by_death(self._activity):
            self._num_kept += 1  # the job may be ending, in operations that fail: the page tells what it waited for
            return
        self._num_kept, activity = 0, "" if is_busy else main_activity()
        if activity == self._activity or (not activity and not is_busy and self._is_asked()):
            return
        self._activity = activity
        _native().activity(self._handle, activity.encode())
        if self._sampler is not None:
            self._sampler.show_groups(is_making=activity == NEW_GROUP)

    def _is_asked(self) -> bool:
        """Whether a signal has just asked for the end: it takes the main thread out of what it waits in."""
        is_now = self._sampler is not None and bool(_native().is_look_wanted(self._handle))
        return is_now or time.monotonic() - self._asked < _ASKED_SECONDS

    def _show_setup(self, is_initialized: bool) -> None:
        from .activity import is_in_init

        native = _native()
        if self._setup != native.INITIALIZED and is_in_init():  # it has a process group before all have met
            setup = native.IN_INIT
        elif is_initialized:
            setup = native.INITIALIZED
        else:
            setup = native.DESTROYED if self._sampler is not None else native.BEFORE_INIT
        if setup != self._setup:
            native.setup(self._handle, setup)
            self._setup = setup


class _Sampler:
    """The sources that the thread samples once there are process groups."""

    __reduce_ex__ = not_copied("the page of this process", "attach in the other process")

    def __init__(self, handle: int, path: Path) -> None:
        import torch._C._distributed_c10d as c10d

        from .arguments import Arguments
        from .calls import Calls
        from .flight_recorder import FlightRecorder
        from .messages import Messages
        from .operation_timing import Dispatcher
        from .process_groups import BackendGroups

        self._handle, self._path, self._directory = handle, path, path.parent
        self._lock = threading.Lock()
        self._num_completed = 0
        self._groups = groups = BackendGroups(handle)
        recorders: dict[str, Any] = {name: getattr(c10d, f"{name}_json", None) for name in _DUMPS}
        pickled = [getattr(c10d, name, None) for name in _DUMPS]
        self._messages, arguments = Messages(handle, groups), Arguments()
        self._recorders = [
            FlightRecorder(handle, groups, _dump(function), self._messages.num_collectives, arguments.root)
            for function in recorders.values()
            if function is not None
        ]
        self._dispatcher = Dispatcher(handle, groups, self._recorders[0] if recorders[_DUMPS[0]] else None)
        self._calls = Calls(path, groups, [_with_stacks(each) for each in pickled if each], self._messages, arguments)
        for each in (self._messages, arguments):
            each.register(self._dispatcher.kernel, lambda: self._dispatcher.is_timing)
        self._has_server = False

    def show_groups(self, *, is_making: bool) -> None:
        with self._lock:
            self._groups.poll(is_making=is_making)

    def _poll_counts(self) -> None:
        with self._lock:
            self._groups.poll()
            for recorder in self._recorders:
                recorder.poll()
            self._messages.poll()
            enqueued = sum(each.num_enqueued for each in self._recorders)
            self._calls.follow((enqueued, self._messages.num_called, self._num_completed_now))

    def poll(self) -> None:
        """The counts, and what the agent asks for."""
        from ..page.control import read_control

        self._poll_counts()
        control = read_control(self._directory)
        if control is not None:
            self._dispatcher.follow(control)
            if control.servers and not self._has_server:
                self._start_server()

    def _start_server(self) -> None:
        from ..page import worker_server

        self._has_server = True
        with suppress(OSError, RuntimeError, ImportError):
            worker_server.start(self._path)
            _native().set_flag(self._handle, _native().SOCKET, True)

    def has_completed_some(self) -> bool:
        """Whether an operation has been completed since the last call."""
        before, self._num_completed = self._num_completed, self._num_completed_now
        return self._num_completed != before

    @property
    def _num_completed_now(self) -> int:
        return sum(each.num_completed for each in self._recorders) + self._messages.num_completed

    def poll_closely(self) -> None:
        """Sample in any thread, when the process is about to end."""
        with self._lock:
            for recorder in self._recorders:
                recorder.poll_closely()
            self._calls.write()

    def poll_last(self) -> None:
        """Sample at the end of the script. What still looks open may only lack its report, see FlightRecorder."""
        self._poll_counts()
        if any(recorder.has_open for recorder in self._recorders):
            self.poll_closely()

    def close(self) -> None:
        """To be called once no thread polls any more."""
        self._dispatcher.close()


_DUMPS: Final = ("_dump_fr_trace", "_dump_nccl_trace")


def _dump(function: Any) -> Any:
    return lambda with_entries: function(with_entries, False)


def _with_stacks(function: Any) -> Any:
    return lambda: function(True, _has_inductor(), False)


def _has_inductor() -> bool:
    """Whether torch._inductor is there, as it is once an optimizer has made a step.

    torch asks it for the lines of stacks, and would import it for that, in the midst of what the script imports.
    """
    module = sys.modules.get("torch._inductor")
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _cut(text: str) -> bytes:
    """An exit reason as far as it fits into the page, with dots for the rest."""
    from ..words import shortened

    room = _native().Header.exit_reason.size - 1
    code = shortened(text, room).encode("utf-8", "replace")
    return code if len(code) <= room else code[: room - 3].decode("utf-8", "ignore").encode() + b"..."


def _native() -> ModuleType:
    from ..page import native

    return native


def _initialized_distributed() -> Any:
    """torch.distributed once the process group is there; None before, and while torch is still being imported."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        return None
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _run_id() -> str:
    """The launcher's id of the run; where it has none, one that its ranks share.

    On one node the launcher's process is that id. On several nodes, or an unknown number, the meeting address is.
    """
    environment = os.environ
    run_id = environment.get("TORCHELASTIC_RUN_ID", "")
    if run_id not in ("", "none"):
        return run_id
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if address and port and int(environment.get("WORLD_SIZE") or 1) > int(environment.get("LOCAL_WORLD_SIZE") or 0):
        return f"{address}:{port}"
    parent = process.read_stat(os.getppid())
    return f"run-{os.getppid()}-{parent.start_ticks if parent else 0}"


def _start_ns(pid: int) -> int:
    """When a process was started. Pages that are older than the launcher of this job are another job's."""
    stat = process.read_stat(pid)
    return stat.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if stat else 0
