"""The rules of tensorwire-job's sources: imports go one way, and what they take of tensorwire is listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import (
    by_name,
    check_experimental,
    check_folder,
    circles,
    cpp_includes,
    import_graph,
    imported_modules,
    module_name,
)

JOB = Path(__file__).resolve().parent.parent
PACKAGE = JOB / "src" / "tensorwire_job"

# What the package takes of tensorwire: the whole of the bond between the two.
TAKEN = {
    "tensorwire._ground.copies.not_copied",
    "tensorwire._ground.launcher.launch",
    "tensorwire._ground.library.find_library",
    "tensorwire._ground.new_file.NewFile",
    "tensorwire._ground.new_file.check_regular",
    "tensorwire._ground.new_file.move_aside",
    "tensorwire._ground.new_file.open_to_append",
    "tensorwire._ground.text.escape",
    "tensorwire.errors.CorruptDataError",
    "tensorwire.errors.FormatError",
    "tensorwire.errors.LimitExceededError",
    "tensorwire.errors.TensorwireError",
    "tensorwire.errors.UnsupportedVersionError",
    "tensorwire.files.pickle_stack.OPCODES",
    "tensorwire.files.pickle_stack.PickleStack",
    "tensorwire.files.pickle_stack.index_of",
}
OF_COMMANDS = {
    "tensorwire.cli.completion",
    "tensorwire.cli.failures.FINDING",
    "tensorwire.cli.group.CommandGroup",
    "tensorwire.cli.options",
    "tensorwire.cli.output",
    "tensorwire.cli.output.count",
    "tensorwire.cli.program",
}

# What each folder and file may import of the package, or of a folder, besides itself; one that is not here nothing.
FOLDERS = {
    "analyzer": {
        "view": {"graph"},
        "slowness": {"view"},
        "verdicts": {"graph", "view"},
        "memory": {"slowness", "view"},
        "analyzer": {"memory", "slowness", "verdicts", "view"},
    },
    "page": {
        "control": {"native"},
        "rank_page": {"native", "process"},
        "recorder_entries": {"native"},
        "worker_server": {"deadline"},
        "directory": {"control", "process", "rank_page"},
    },
    "rank": {
        "activity": {"file_locks", "store_waits"},
        "flight_recorder": {"process_groups"},
        "messages": {"flight_recorder", "lines", "process_groups"},
        "calls": {"arguments", "lines", "messages", "process_groups"},
        "operation_timing": {"arguments", "flight_recorder", "messages", "process_groups"},
        "probe": {
            "activity",
            "arguments",
            "calls",
            "file_locks",
            "flight_recorder",
            "messages",
            "operation_timing",
            "process_groups",
        },
    },
    "protocol": {
        "calls": {"integers"},
        "listener": {"connection"},
        "states": {"integers"},
        "encoding": {"calls", "integers", "states"},
        "node_rows": {"encoding", "integers"},
        "decoding": {"calls", "encoding", "integers", "node_rows", "states"},
        "report_columns": {"decoding", "encoding", "states"},
    },
    "node": {
        "stacks": {"workers"},
        "observer": {"frozen_rank", "stacks", "tcp", "workers"},
        "local_node": {"observer", "stacks", "timing"},
        "agent": {"local_node"},
    },
    "report": {
        "history": {"before", "rank_status", "stragglers"},
        "charts": {"history", "rank_status"},
        "codes": {"history"},
        "next_command": {"history"},
    },
    "nccl": {"ras_findings": {"ras"}},
    "cli": {
        "__main__": {"main"},
        "agent": {"arguments"},
        "analyzer": {"arguments", "verdict"},
        "diagnose": {"arguments", "verdict"},
        "report": {"arguments", "verdict"},
        "screen": {"verdict"},
        "watch": {"arguments", "screen", "verdict"},
    },
    "service": {
        "controller": {"merge"},
        "recording": {"merge"},
        "journal": {"recording", "time_share"},
        "service": {"controller", "journal", "merge", "time_share"},
        "metrics": {"service"},
        "diagnose": {"follow", "job_directory", "recording", "service"},
        "dumped_stacks": {"rank_files", "source_lines"},
        "recorder_dumps": {"rank_files", "recorder_pickle"},
        "source_lines": {"rank_files"},
        "recorder_findings": {"recorder_dumps"},
    },
    "": {
        "__main__": {"rank"},
        "cli": {"model", "nccl", "node", "numbered", "protocol", "report", "service", "stacks", "version", "words"},
        "words": {"model"},
        "members": {"model"},
        "columns": {"model"},
        "confidence": {"model"},
        "page": {"model", "members"},
        "rank": {"page", "model", "members", "words"},
        "protocol": {"model", "members", "columns"},
        "node": {"page", "protocol", "model"},
        "analyzer": {"model", "columns", "confidence", "words", "numbered", "stacks"},
        "report": {"model", "columns", "words", "numbered", "stacks", "version"},
        "nccl": {"confidence", "model", "words"},
        "service": {"page", "node", "protocol", "analyzer", "report", "model", "columns", "confidence", "words"},
    },
}


@pytest.mark.parametrize("part", FOLDERS)
def test_folders_import_only_what_they_may(part: str) -> None:
    check_folder(PACKAGE, part, FOLDERS[part])


def test_what_is_taken_of_tensorwire_is_listed() -> None:
    taken: dict[bool, set[str]] = {False: set(), True: set()}
    for path in PACKAGE.rglob("*.py"):
        module = module_name(path, PACKAGE.parent)
        names = imported_modules(path, module)
        taken[module.startswith("tensorwire_job.cli")] |= {name for name in names if name.split(".")[0] == "tensorwire"}
    assert taken[False] == TAKEN
    assert taken[True] - TAKEN == OF_COMMANDS


def test_only_the_public_names_are_imported_by_name() -> None:
    assert by_name(PACKAGE) == {"tensorwire_job"}


def test_the_rest_does_without_what_is_experimental() -> None:
    check_experimental(PACKAGE, {"tensorwire_job.nccl": {"tensorwire_job.cli.diagnose"}})


def test_modules_import_each_other_in_no_circle() -> None:
    assert not circles(import_graph(PACKAGE.parent, PACKAGE.name))


def test_the_core_includes_itself_alone() -> None:
    for path in (each for each in (JOB / "core").rglob("*") if each.suffix in (".cpp", ".h")):
        for name in cpp_includes(path):
            assert (JOB / "core" / name).is_file(), f'{path.relative_to(JOB)}: "{name}" is not a path from core/'


def test_a_rank_loads_little() -> None:
    code = "import sys; from tensorwire_job import attach, phase; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "ml_dtypes", "torch", "rich", "click"}.intersection(loaded)
    assert {name.split(".")[1] for name in loaded if name.startswith("tensorwire_job.")} == {"rank", "page"}
