"""Single objects on their way to a store."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tensorwire.storage.locations import locate
from tensorwire.storage.upload import put_file
from tests.support.acting import raising
from tests.support.stores import faulty_store


@pytest.fixture
def local(tmp_path: Path) -> Path:
    (tmp_path / "local").write_bytes(b"content")
    return tmp_path / "local"


def test_a_put_that_ends_just_after_a_wait_has_ended(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the end and the question fall: a wait that ran out is no error of the store."""
    monkeypatch.setattr("tensorwire.storage.upload._POLL_SECONDS", 0.01)
    own_done = Future.done

    def late(self: Future[Any]) -> bool:
        while not own_done(self):
            time.sleep(0.01)
        return True

    def put(own: Any, path: str, key: str, **options: Any) -> None:
        time.sleep(0.1)
        own(path, key, **options)

    monkeypatch.setattr(Future, "done", late)
    with faulty_store(put_file=put) as store:
        put_file(local, locate("faulty://m/a"))
        assert list(store.store) == ["/m/a"]


def test_a_time_out_of_the_store_is_an_error_that_names_the_place(local: Path) -> None:
    slow = raising(TimeoutError("the store is slow"))
    with faulty_store(put_file=slow), pytest.raises(TimeoutError, match="the store is slow: 'faulty:///m/a'"):
        put_file(local, locate("faulty://m/a"))


def test_an_interrupt_ends_the_wait_for_a_put(local: Path) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck(own: Any, *arguments: Any, **options: Any) -> None:
        begun.set()
        may_end.wait(10)
        ended.set()

    def interrupt() -> None:
        begun.wait(30)
        time.sleep(0.3)  # by then it waits
        signal.raise_signal(signal.SIGINT)

    with faulty_store(put_file=stuck):
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            put_file(local, locate("faulty://m/a"))
        assert not ended.is_set(), "the call came back before the put ended"
        may_end.set()
        assert ended.wait(30)
