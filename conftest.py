"""Settings and fixtures of all tests, those of jobs among them."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.scheduler import LoadGroupScheduling

# make test draws the same examples each time, so that a change alone makes it fail; make test-slow draws new ones.
# Only a test that bounds its time has a deadline.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# Triton and its kernels read it when they are imported, and torch.compile imports Triton too.
if "TENSORWIRE_TEST_DEVICE" not in os.environ:  # tests/support/devices.py
    os.environ["TRITON_INTERPRET"] = "1"

# Threads of torch would turn while they wait for each other, and take the cores from those that they wait for. The
# library of OpenMP reads it when torch is loaded, here and in the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_MOST_OF_A_NAME = 200

# A shell has what runs in its background ignore SIGINT, and nohup SIGHUP. Processes that tests start would do the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A text of ten million characters is no name: xdist sends names, and pytest keeps them in the environment."""
    if isinstance(val, str | bytes) and len(val) > _MOST_OF_A_NAME:
        return f"{len(val)} of {val[:8]!r}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported for the tests stays. Searching it for garbage again and again takes seconds, while it is read
    and whenever a test has garbage collected. Tests in a worker fork it thousands of times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        if "PYTEST_XDIST_WORKER" in os.environ:  # elsewhere a package in the environment may be called tests, too
            from tests.support.huge_pages import collapse_memory

            collapse_memory()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    """With --dist loadgroup, a file whose tests are in no group is one too. What its tests share is then made once, and
    not by each worker; and a worker that has hundreds of tests to do waits for none while they are handed out, which
    takes longer with each test that was handed out before."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if group == nodeid else group

    return Files(config, log)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent
