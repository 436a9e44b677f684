"""Remembers what was found when."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorwire_job.model import Finding, Observation, Thresholds
from tensorwire_job.service.service import LocalJob

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    Record = Callable[[Observation], None]

THRESHOLDS = Thresholds(hang_seconds=3.0, slow_seconds=2.0, lost_seconds=2.0)
_INTERVAL_SECONDS = 0.25


interrupted = threading.Event()
"""Set when the user wants to leave: whoever watches stops."""


class WatchError(Exception):
    """What watches has failed: a fault of ours."""


@dataclass(frozen=True, slots=True)
class Poll:
    time: float
    findings: list[Finding]


class Watch:
    """Looks on in a thread of its own until `close`.

    Args:
        record: is given every observation.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.polls: list[Poll] = []
        self._record = record
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def observe(self) -> Generator[tuple[Observation, list[Finding]]]:
        """What there is to see and what is found in it, again and again; in the thread."""
        raise NotImplementedError

    def _look_on(self) -> None:
        polls = self.observe()
        try:
            for observation, findings in polls:
                if self._record is not None:
                    self._record(observation)
                self.polls.append(Poll(observation.time, findings))
                if self._over.is_set():
                    break
        except BaseException as error:
            self._error = error
        finally:
            polls.close()

    @property
    def findings(self) -> list[Finding]:
        """What is found at present."""
        return self.polls[-1].findings if self.polls else []

    @property
    def trouble(self) -> str:
        """Why nobody watches any more; "" while somebody does."""
        return "" if self._error is None else f"the analyzer failed: {self._error!r}"

    def since(self, start: float) -> list[Poll]:
        return [poll for poll in list(self.polls) if poll.time >= start]

    def wait(self, seconds: float, until: Callable[[list[Finding]], bool] = lambda findings: False) -> bool:
        """Watch on, until what is found satisfies a condition; whether it did."""
        deadline = time.monotonic() + seconds
        while not until(self.findings):
            if self._error is not None:
                raise WatchError(self.trouble) from self._error
            if time.monotonic() >= deadline:
                return False
            if interrupted.wait(0.02):
                raise KeyboardInterrupt
        return True

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class LocalWatch(Watch):
    """Agent and analyzer in this process, as `tensorwire-job watch` has them."""

    def __init__(self, pages: Path, thresholds: Thresholds, record: Record | None = None) -> None:
        self._pages, self._thresholds = pages, thresholds
        super().__init__(record)

    def observe(self) -> Generator[tuple[Observation, list[Finding]]]:
        with closing(LocalJob(self._pages, self._thresholds)) as job:
            while True:
                yield job.poll()
                self._over.wait(_INTERVAL_SECONDS)


def is_finding(finding: Finding) -> bool:
    return finding.level == "finding"
