"""What is written down twice agrees: transcript and example, changelog and version, binding and header."""

from __future__ import annotations

import ctypes
import re
import runpy
from pathlib import Path

from tensorwire_job.page import native
from tensorwire_job.version import __version__
from tests.support.prose import newest_version


def test_the_transcript_of_the_hung_rank_points_into_the_example(repository: Path) -> None:
    page = (repository / "job/docs/index.md").read_text()
    assert re.match(r"# .+\n\n```console\n\$ torchrun ", page), "the transcript is what the page begins with"
    transcript = page[page.index("```console\n") : page.index("```\n")]
    assert transcript in (repository / "job/README.md").read_text(), "both pages show the same one"
    places = re.findall(r'File "job/examples/hang\.py", line (\d+) in (\w+)', page)
    assert [function for _, function in places] == ["load_batch", "train"]
    lines = (repository / "job/examples/hang.py").read_text().splitlines()
    assert [lines[int(line) - 1].strip() for line, _ in places] == ["lock.acquire()", "batch = load_batch(step, rank)"]
    names_culprit = runpy.run_path(str(repository / "job/examples/hang.py"))["names_culprit"]
    answer = transcript.partition("$ tensorwire-job diagnose")[2]
    answer = answer.partition("\n")[2]
    assert names_culprit(answer)
    assert not names_culprit(answer.replace("rank 2", "rank 1"))


def test_the_changelog_begins_with_the_version(repository: Path) -> None:
    assert newest_version(repository / "job/CHANGELOG.md") == __version__.split(".dev")[0]


def test_the_binding_has_the_constants_of_the_page(repository: Path) -> None:
    header = (repository / "job/core/page.h").read_text()
    declared = {
        name: int(number) for name, number in re.findall(r"^constexpr \w+ k(\w+) = (\d+);", header, re.MULTILINE)
    }
    for body in re.findall(r"^enum \w+ : \w+ {\n(.*?)^};", header, re.MULTILINE | re.DOTALL):
        declared |= {name: number for number, name in enumerate(re.findall(r"^  k(\w+),", body, re.MULTILINE))}
    declared = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): number for name, number in declared.items()}
    bound = {name: value for name, value in vars(native).items() if name.isupper() and type(value) is int}
    assert bound.pop("UNKNOWN_NBYTES") == 2**64 - 1  # all ones, in words
    assert bound == {name: declared[name] for name in bound}
    assert len(bound) >= 10


def test_the_binding_has_the_fields_of_the_page(repository: Path) -> None:
    header = (repository / "job/core/page.h").read_text()
    for name in ("Slot", "Header", "ControlEntry", "Control", "Identity", "OperationInfo"):
        (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", header, re.MULTILINE | re.DOTALL)
        declared = re.findall(r"^  (?:const )?\w+\*? (\w+)(?:\[\w+\])?;", body, re.MULTILINE)
        assert declared
        assert [field[0] for field in getattr(native, name)._fields_] == declared
    page = re.search(r"kPageNbytes = (\d+);", header)
    assert page
    for name, size in re.findall(r"^static_assert\(sizeof\((\w+)\) == (\w+)\);", header, re.MULTILINE):
        assert ctypes.sizeof(getattr(native, name)) == int(page[1] if size == "kPageNbytes" else size)
