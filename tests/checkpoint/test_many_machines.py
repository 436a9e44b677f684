"""docs/many-machines.md: its scripts run as two processes, with the variables that their schedulers set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.checkpoint_models import tree_hashes

TENSORWIRE = f"""#!/bin/sh
exec {sys.executable} -m tensorwire "$@"
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "many-machines.md").read_text()


def script_of_slurm(page: str) -> tuple[str, str, str]:
    """The script of the array, and the names of the variables for a task's number and for how many there are."""
    (script,) = [block for block in blocks(page, "sh") if "#SBATCH --array" in block]
    return script, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"


def script_of_kubernetes(page: str) -> tuple[str, str, str]:
    (manifest,) = blocks(page, "yaml")
    found = re.search(r"^ +- \|\n((?: {14}.*\n)+)", manifest, re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found[1]), "JOB_COMPLETION_INDEX", "COUNT"


@pytest.mark.parametrize(
    ("scheduler", "num_tasks"),
    [
        (script_of_slurm, 2),
        (script_of_kubernetes, 3),
        pytest.param(script_of_slurm, 3, marks=pytest.mark.slow),
        pytest.param(script_of_kubernetes, 2, marks=pytest.mark.slow),
    ],
)
def test_tasks_of_a_scheduler(
    scheduler: object, num_tasks: int, page: str, model: Path, packed: Path, tmp_path: Path
) -> None:
    """There are two files, so a third task has none."""
    assert callable(scheduler)
    script, number, count = scheduler(page)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tensorwire").write_text(TENSORWIRE)
    (tmp_path / "bin" / "tensorwire").chmod(0o755)
    common = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SRC": str(model)}
    common |= {"DST": str(tmp_path / "x"), count: str(num_tasks)}
    tasks = [
        subprocess.Popen(["bash", "-c", script], env={**common, number: str(task)}, stderr=subprocess.PIPE, text=True)
        for task in range(num_tasks)
    ]
    said = [task.communicate()[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0] * num_tasks, said
    assert not (tmp_path / "x").exists()
    last = re.search(r"--wrap '(.*)'", page)
    assert last is not None
    done = subprocess.run(["bash", "-c", last[1]], env=common, capture_output=True, text=True, check=True)
    assert done.stdout.count("resumed") == 2
    assert tree_hashes(tmp_path / "x") == tree_hashes(packed)


def test_the_manifest_has_the_form_of_a_job(page: str) -> None:
    yaml = pytest.importorskip("yaml")
    (manifest,) = blocks(page, "yaml")
    job = yaml.safe_load(manifest)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert given["COUNT"] == str(job["spec"]["completions"])
    assert container["command"] == ["bash", "-c"]
    assert f"tensorwire compress {given['SRC']}\n{given['DST']}" in page
