"""Things are made before they are asked for; whatever happens, nobody gets a wrong one or waits for ever."""

from __future__ import annotations

import _thread
import gc
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

import itertools

from tensorwire.storage import ahead as _ahead
from tensorwire.storage.ahead import ALIGNMENT, Ahead
from tests.support.acting import raising
from tests.support.processes import exit_code
from tests.support.waiting import wait_for

SIZES = {name: ALIGNMENT * (1 + index % 3) - index for index, name in enumerate("abcdefghijklmnopqrstuvwxyz")}
LARGEST = 3 * ALIGNMENT


class Filling:
    """Each thing is its own name over and over, made in parts."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.makers: list[str] = []

    def nbytes(self, key: str) -> int:
        return SIZES[key]

    def step(self, key: str) -> int:
        return self._step

    def make(self, key: str, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        self.makers.append("thread" if ahead else "caller")
        memory[start:stop] = key.encode() * (stop - start)


def pipeline(work: Filling | None = None, capacity: int = 2 * LARGEST, step: int = 3000) -> Ahead[str]:
    return Ahead(work or Filling(step), capacity)


def settle(ahead: Ahead[str]) -> None:
    while any(not entry.over and not entry.ready for entry in list(ahead._entries)):
        time.sleep(0.001)


def use(ahead: Ahead[str], keys: str, seconds: float = 0.0) -> int:
    """How many of the keys were made ahead. Each is used for a while and must stay what it is."""
    hits = 0
    for key in keys:
        lease = ahead.take(key)
        if lease is not None:
            with lease as memory:
                assert len(memory) == SIZES[key]
                assert bytes(memory) == key.encode() * len(memory)
                time.sleep(seconds)
                assert bytes(memory) == key.encode() * len(memory), "changed while it was in use"
            hits += 1
        else:
            time.sleep(seconds)
    return hits


def test_from_the_second_pass_on_all_is_made_ahead() -> None:
    with_order = pipeline()
    assert use(with_order, "abcdefgh", 0.01) == 0
    for _ in range(3):
        assert use(with_order, "abcdefgh", 0.01) >= 7
    with_order.close()


def test_no_more_memory_than_its_capacity_is_used() -> None:
    """All that is alive lies in one piece, and two that are alive never overlap."""
    ahead = pipeline()
    use(ahead, "abcdefgh", 0.005)
    for key in "abcdefgh" * 3:
        lease = ahead.take(key)
        with ahead._lock:
            spans = {entry.key: (entry.start, entry.stop) for entry in ahead._entries if not entry.over}
        assert all(0 <= start < stop <= 2 * LARGEST for start, stop in spans.values())
        ordered = sorted(spans.values())
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ordered))
        del lease
    ahead.close()


def test_what_is_larger_than_the_memory_is_left_to_the_caller() -> None:
    ahead = pipeline(capacity=ALIGNMENT)
    assert use(ahead, "abcabcabc", 0.005) <= 2  # of which only `a` fits
    ahead.close()


@pytest.mark.parametrize("seed", range(5))
def test_any_order_gives_the_right_things(seed: int) -> None:
    rng = random.Random(seed)
    ahead = pipeline()
    for _ in range(30):
        start = rng.randrange(20)
        use(ahead, "abcdefghijklmnopqrstuvwxyz"[start : start + rng.randrange(8)], rng.choice([0, 0, 0.001]))
    ahead.close()


class Failing(Filling):
    def make(self, key: str, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        if key == "c" and start >= self._step:
            raise OSError("no c")
        super().make(key, memory, start, stop, ahead)


def test_a_failure_is_left_to_the_one_who_needs_the_thing() -> None:
    ahead = pipeline(Failing(3000))
    use(ahead, "abcde", 0.01)
    settle(ahead)
    assert ahead.take("c") is None
    settle(ahead)
    assert use(ahead, "de", 0.01) == 2, "the thread goes on"
    ahead.close()


class Slow(Filling):
    """Waits in the background until it may go on."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def make(self, key: str, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        if ahead:
            self.begun.set()
            assert self.go_on.wait(10)
        super().make(key, memory, start, stop, ahead)


@pytest.mark.parametrize("step", [3000, 10 * LARGEST])
def test_who_comes_early_makes_the_rest(step: int) -> None:
    work = Slow(step)
    ahead = pipeline(work)
    use(ahead, "ab")
    assert ahead.take("a") is None
    assert work.begun.wait(10)  # b
    threading.Timer(0.05, work.go_on.set).start()
    assert use(ahead, "b") == 1
    expected = ["caller"] * (step < LARGEST) + ["thread"]
    assert work.makers[: len(expected)] == expected
    ahead.close()


def test_what_is_hardly_begun_is_left_to_the_caller() -> None:
    for least, expected in ((0.2, 1), (0.5, 0)):
        work = Slow(3000)  # of the 8191 bytes of b
        ahead = Ahead(work, 2 * LARGEST, least=least)
        use(ahead, "ab")
        ahead.take("a")
        assert work.begun.wait(10)
        threading.Timer(0.05, work.go_on.set).start()
        assert use(ahead, "b") == expected
        ahead.close()


def test_a_failure_in_ones_own_part_is_ones_own() -> None:
    class Both(Slow):
        def make(self, key: str, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
            if not ahead:
                raise OSError("no rest")
            super().make(key, memory, start, stop, ahead)

    work = Both(3000)
    ahead = pipeline(work)
    use(ahead, "ab")
    ahead.take("a")
    assert work.begun.wait(10)
    with pytest.raises(OSError, match="no rest"):
        ahead.take("b")
    work.go_on.set()
    ahead.close()


def test_a_thread_that_is_gone_is_not_waited_for() -> None:
    """As at the end of the interpreter, or killed by a debugger."""
    ahead = pipeline()
    use(ahead, "ab", 0.01)
    ahead.take("a")
    settle(ahead)
    (entry,) = (entry for entry in ahead._entries if entry.key == "b")
    entry.next, entry.done_nbytes = 0, 0
    entry.claim(SIZES["b"])  # by a thread whose references are gone with it
    assert ahead.take("b") is None
    ahead.close()


def test_a_part_that_an_interrupt_left_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that keeps the exception keeps the part, as an interactive shell does."""
    work = Slow(3000)
    ahead = pipeline(work)
    use(ahead, "ab")
    ahead.take("a")
    assert work.begun.wait(10)  # b

    with monkeypatch.context() as patch:
        patch.setattr(ahead, "_plan", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt) as kept:
            ahead.take("b")
    work.go_on.set()
    started = time.monotonic()
    assert use(ahead, "b") == 0
    assert time.monotonic() - started < 10
    del kept
    gc.collect()
    use(ahead, "abab", 0.01)
    assert use(ahead, "abab", 0.01) >= 2, "as ever, once the exception is gone"
    ahead.close()


def test_a_part_that_another_thread_left_behind_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ahead, "_PATIENCE_SECONDS", 0.1)
    ahead = pipeline()
    use(ahead, "ab", 0.01)
    ahead.take("a")
    settle(ahead)
    (entry,) = (entry for entry in ahead._entries if entry.key == "b")
    entry.next, entry.done_nbytes = 0, 0
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(entry.claim, SIZES["b"]).result()
    assert ahead.take("b") is None
    assert (kept.start, kept.stop) == (0, SIZES["b"])
    ahead.close()


def test_memory_is_free_again_without_the_end_of_a_with_block() -> None:
    """An interrupt may come between the two."""
    ahead = pipeline()
    use(ahead, "abcd", 0.01)
    for _ in range(20):
        for key in "abcd":
            ahead.take(key)  # and drop it
            time.sleep(0.002)
    gc.collect()
    assert use(ahead, "abcd", 0.01) >= 3
    ahead.close()


def test_threads_may_share_it() -> None:
    ahead = pipeline()
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(use, ahead, "abcdefgh" * 20, 0.0005) for _ in range(4)]:
            future.result()
    ahead.close()


def test_the_thread_ends_by_itself() -> None:
    ahead = pipeline()
    use(ahead, "abcabc", 0.01)
    wait_for(lambda: not ahead._threads)
    assert use(ahead, "abcabc", 0.01) >= 2, "and another one takes its place"
    ahead.close()


def test_once_closed_it_makes_nothing() -> None:
    ahead = pipeline()
    use(ahead, "abcabc", 0.01)
    ahead.close()
    assert not ahead._threads
    assert use(ahead, "abcabc") == 0


@pytest.mark.parametrize("fails", ["at once", "before it begins"])
def test_no_more_threads_no_more_things(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def start(*arguments: object) -> None:
        if fails == "at once":
            raise RuntimeError("can't start new thread")

    ahead = pipeline()
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", start)
        assert use(ahead, "abcabc", 0.001) == 0
    time.sleep(1.1)
    assert use(ahead, "abcabc", 0.01) >= 4, "tried again after a while"
    ahead.close()


def test_a_forked_child_begins_anew() -> None:
    """At any moment: also while the thread is at work and holds the lock."""
    ahead = pipeline()
    use(ahead, "abcdef", 0.005)

    def child() -> None:
        use(ahead, "abcdef", 0.005)
        assert any(use(ahead, "abcdef", 0.005) >= 4 for _ in range(10))

    for _ in range(10):
        use(ahead, "abc", 0.001)
        assert exit_code(child) == 0
    ahead.close()
