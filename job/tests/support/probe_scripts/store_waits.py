"""A rank that waits for keys. A thread sets each once the page shows what the rank is in."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from .own_page import await_probe, page

SECONDS = 20.0


def activity() -> str:
    return page().activity


def shown_until(is_over: Callable[[], bool]) -> str:
    deadline = time.monotonic() + SECONDS
    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.02)
    return activity() or "nothing"


dist.init_process_group("gloo")
dist.barrier()
await_probe()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = dist.TCPStore("127.0.0.1", server.port, is_master=False)  # a wait keeps other threads from its store
found: list[str] = []


def set_later(key: str) -> None:
    found.append(shown_until(lambda: bool(activity())))
    dist.PrefixStore("step", server).set(key, "1")


def setter(key: str) -> threading.Thread:
    thread = threading.Thread(target=set_later, args=(key,))
    thread.start()
    return thread


class Trainer:
    def __init__(self) -> None:
        self.store = client

    def read(self, key: str) -> bytes:
        return bytes(self.store.get(key))


prefixed = dist.PrefixStore("step", client)
time.sleep(0.5)  # a store that is not waited for is no activity
print(activity() or "nothing")
setting = setter("first")
prefixed.wait(["first"], timedelta(seconds=SECONDS))
setting.join()
print("wait:", found[-1])
print(shown_until(lambda: not activity()))
setting = setter("second")
value = Trainer().read("step/second")
setting.join()
print("get:", found[-1], value)
print(shown_until(lambda: not activity()))
try:
    prefixed.wait(["never"], timedelta(seconds=0.1))
except RuntimeError as error:
    print(type(error).__name__)
