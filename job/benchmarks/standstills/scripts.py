"""Programs written out as the scripts that a user would write, for torchrun and gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .programs import Call, Program

_HEAD = '''\
"""{title}"""
import fcntl, os, re, signal, sys, threading, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
told = os.open(os.path.join(os.environ["TOLD"], str(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def begin(place):
    os.write(told, b"+%d\\n" % place)


def end(place):
    os.write(told, b"-%d\\n" % place)


def signaller(number, others):
    """A process that sends signals once it is told to. It has none of the connections that are made later."""
    read, write = os.pipe()
    if os.fork():
        return write
    os.close(write)
    if os.read(read, 1):
        since = time.monotonic()
        for other, seconds in sorted(others, key=lambda pair: pair[1]):
            time.sleep(max(0.0, since + seconds - time.monotonic()))
            try:
                os.kill(int(open(os.path.join(os.environ["TOLD"], "pid", str(other))).read()), number)
            except ProcessLookupError:
                pass
    os._exit(0)


def x(numel):
    return torch.ones(numel)


def lock(key):
    locks[key] = file = open(os.path.join(os.environ["TOLD"], key), "a")
    fcntl.flock(file, fcntl.LOCK_EX)


def seize(key):
    """By a process that is no child of a rank's, and ends with this one."""
    own, (read, write) = os.getpid(), os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            lock(key)
            os.write(write, b"!")
            while os.path.exists(f"/proc/{{own}}"):
                time.sleep(0.2)
        os._exit(0)
    os.read(read, 1)


def poll(key):
    while store().add(key, 0) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)


class InThread:
    """What a thread of its own calls. The script goes on once it has."""

    def __init__(self, call):
        self.error = None
        self.thread = threading.Thread(target=self.run, args=(call,), daemon=True)
        self.thread.start()
        time.sleep(0.1)

    def run(self, call):
        try:
            call()
        except Exception as error:
            self.error = error

    def wait(self):
        self.thread.join()
        if self.error is not None:
            raise self.error


store = dist.distributed_c10d._get_default_store
works, groups, locks = {{}}, {{}}, {{}}
'''


def script(program: Program, title: str) -> str:
    """All ranks' calls, each between two notes of its place."""
    lines = [_HEAD.format(title=title)]
    for rank, calls in enumerate(program.calls):
        lines.append(f"if rank == {rank}:")
        lines += [
            f"    pipe = signaller(signal.{call.key}, {_others(call)})" for call in calls if call.name == "signals"
        ]
        for place, call in enumerate(calls):
            lines.append(f"    begin({place}); {_statement(program, call, rank)}; end({place})")
    lines.append("dist.destroy_process_group()\n")
    return "\n".join(lines)


def _statement(program: Program, call: Call, rank: int) -> str:
    name, members = call.name, program.groups[call.group][1]
    group = f"group=groups[{call.group}]" if call.group else "group=None"
    group += ", async_op=True" if call.handle and not call.is_in_thread else ""
    after = f"works[{call.handle}] = " if call.handle and name != "wait" else ""
    size, x = len(members), f"x({call.numel})"
    root = members[call.root] if call.root >= 0 else -1
    parts = f"[x({call.numel}) for _ in range({size})] if rank == {root} else None"
    sent, received = call.counts[:size], call.counts[size:]
    texts = {
        "init": "dist.init_process_group('gloo'); groups[0] = None",
        "new_group": f"groups[{call.group}] = dist.new_group({list(members)})",
        "wait": f"works[{call.handle}].wait()",
        "all_reduce": f"dist.all_reduce({x}, {group})",
        "broadcast": f"dist.broadcast({x}, {root}, {group})",
        "reduce": f"dist.reduce({x}, {root}, {group})",
        "gather": f"dist.gather({x}, {parts}, {root}, {group})",
        "scatter": f"dist.scatter({x}, {parts}, {root}, {group})",
        "all_gather_into_tensor": f"dist.all_gather_into_tensor(x({call.numel * size}), {x}, {group})",
        "reduce_scatter_tensor": f"dist.reduce_scatter_tensor({x}, x({call.numel * size}), {group})",
        "all_to_all": f"dist.all_to_all_single(x({sum(received)}), x({sum(sent)}), {[*received]}, {[*sent]}, {group})",
        "barrier": f"dist.barrier({group})",
        "monitored_barrier": "dist.monitored_barrier()",
        "send": f"dist.send({x}, {call.peer})",
        "isend": f"dist.isend({x}, {call.peer})",
        "recv": f"dist.recv({x}, {call.peer})",
        "irecv": f"dist.irecv({x}, {call.peer})",
        "recv_any": f"dist.recv({x})",
        "store_set": f"store().set('{call.key}', 'x')",
        "store_get": f"store().get('{call.key}')",
        "store_add": f"store().add('{call.key}', 1)",
        "store_poll": f"poll('{call.key}')",
        "lock": f"lock({call.key!r})",
        "unlock": f"{call.key!r} in locks and locks.pop({call.key!r}).close()",
        "seize": f"seize({call.key!r})",
        "spin": "threading.Thread(target=re.match, args=('(a+)+$', 80 * 'a' + 'b')).start(); time.sleep(1e6)",
        "sleep": "time.sleep(1e6)",
        "loop": "[time.sleep(0.1) for _ in iter(int, 1)]",
        "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    }
    if name == "die":
        return _death(call.key)
    if name == "signals":
        return f"os.write(pipe, b'!'); os.kill(os.getpid(), signal.{call.key})"
    return after + (f"InThread(lambda: {texts[name]})" if call.is_in_thread else texts[name])


def _others(call: Call) -> list[tuple[int, float]]:
    """The first is the rank itself."""
    return [(rank, gap / 1000) for rank, gap in zip(call.counts[2::2], call.counts[3::2], strict=True)]


def _death(words: str) -> str:
    if words == "SIGKILL":
        return "os.kill(os.getpid(), signal.SIGKILL)"
    if words == "killed by SIGSEGV":
        return "os.kill(os.getpid(), signal.SIGSEGV)"
    if words.startswith("exit "):
        return f"sys.exit({words[5:]})"
    kind, _, text = words.partition(": ")
    return f"raise type({kind!r}, (Exception,), {{}})({text!r})"
