"""The examples in job/examples/launchers, as far as they can be tried without their launchers: the manual says so."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tensorwire_job.cli import command as group
from tensorwire_job.cli import main

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ROOT / "job/examples/launchers"
MANUAL = ROOT / "job/docs/launchers.md"
SCRIPTS = sorted(LAUNCHERS.glob("*.sh"))
PROGRAMS = sorted(LAUNCHERS.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_the_script(script: Path) -> None:
    ran = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_python_reads_the_program(program: Path) -> None:
    compile(program.read_text(), program, "exec", dont_inherit=True)
    assert "STUCK_RANK" in program.read_text()


def test_manual_names_every_example() -> None:
    manual = MANUAL.read_text()
    files = {path.name for path in LAUNCHERS.iterdir() if path.is_file()}
    assert {name for name in files if name not in manual} <= {"with_lightning.py", "with_deepspeed.py", "with_ray.py"}
    assert "(../examples/launchers/" in manual


def commands() -> list[tuple[str, str, str]]:
    """Each `tensorwire-job COMMAND OPTIONS` in the examples and on their page."""
    found = []
    for path in (*SCRIPTS, *LAUNCHERS.glob("*.yaml"), MANUAL):
        text = re.sub(r"\\\n|(?<=&&)\n", " ", path.read_text())
        if path.suffix == ".yaml":  # a command there goes on in the next line
            text = re.sub(r"\n +--(?!nn|np|rdzv)", " --", text)
        found += [(path.name, *match) for match in re.findall(r"tensorwire-job (\w+)([^\n`;|)]*)", text)]
    return found


def test_commands_exist_with_their_options() -> None:
    seen = set()
    for name, command, rest in commands():
        known = group.get_command(click.Context(group), command)
        assert known is not None, f"{name}: there is no {command}"
        options = {text for one in known.params if isinstance(one, click.Option) for text in one.opts}
        given = {text.split("=")[0] for text in re.findall(r"(?<= )--[a-z-]+", rest)}
        assert given <= options, f"{name}: {command} has no {given - options}"
        seen.add((name, command))
    assert {("slurm.sh", "agent"), ("slurm.sh", "analyzer"), ("kubernetes.yaml", "agent"),
            ("kubernetes.yaml", "analyzer"), ("launchers.md", "diagnose")} <= seen  # fmt: skip


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    every = yaml.safe_load_all((LAUNCHERS / "kubernetes.yaml").read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in every}


def test_ranks_and_agent_share_what_they_must() -> None:
    pod = documents()["Job", "train"]["spec"]["template"]["spec"]
    (agent,), (ranks,) = pod["initContainers"], pod["containers"]
    assert agent["restartPolicy"] == "Always", "a sidecar, which does not keep the job from its end"
    assert pod["shareProcessNamespace"] is True
    assert agent["securityContext"] == ranks["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pod["securityContext"]["runAsUser"] > 0
    memory = {one["name"] for one in pod["volumes"] if one.get("emptyDir") == {"medium": "Memory"}}
    for container in (agent, ranks):
        (shm,) = (one for one in container["volumeMounts"] if one["mountPath"] == "/dev/shm")
        assert shm["name"] in memory


@pytest.mark.parametrize("owner", [("Job", "train"), ("Deployment", "train-analyzer")], ids="/".join)
def test_every_mount_has_its_volume(owner: tuple[str, str]) -> None:
    pod = documents()[owner]["spec"]["template"]["spec"]
    volumes = [one["name"] for one in pod["volumes"]]
    mounted = {m["name"] for one in (*pod.get("initContainers", ()), *pod["containers"]) for m in one["volumeMounts"]}
    assert mounted == set(volumes)


def test_services_find_their_pods() -> None:
    found = documents()
    job, service = found["Job", "train"]["spec"], found["Service", "train"]["spec"]
    assert job["template"]["spec"]["subdomain"] == "train"
    assert service["selector"] == {"job-name": "train"}
    assert service["clusterIP"] == "None"
    arguments = job["template"]["spec"]["containers"][0]["args"]
    assert f"--nnodes={job['completions']}" in arguments
    assert job["parallelism"] == job["completions"], "all pods run at once"
    analyzer = found["Deployment", "train-analyzer"]["spec"]["template"]
    assert analyzer["metadata"]["labels"].items() >= found["Service", "train-analyzer"]["spec"]["selector"].items()
    agent = job["template"]["spec"]["initContainers"][0]["command"][-1]
    ports = {one["name"]: one["port"] for one in found["Service", "train-analyzer"]["spec"]["ports"]}
    assert f"--analyzer train-analyzer:{ports['agents']}" in agent
    assert f"--metrics-port {ports['metrics']}" in analyzer["spec"]["containers"][0]["command"][-1]
    assert analyzer["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])


@pytest.mark.xdist_group("probe")
def test_example_trains_with_the_probe(
    run_script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    pages = tmp_path / "pages"
    ran = run_script(
        (LAUNCHERS / "train.py").read_text(),
        STEPS="3",
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        GLOO_SOCKET_IFNAME="lo",
    )
    assert (ran.returncode, ran.stdout) == (0, "trained on 1 ranks\n"), ran.stderr
    assert [path.name for path in pages.glob("*.page")] == ["rank-0-0.page"]
    assert main(["diagnose", "--dir", str(pages), "--for", "0", "--lost-seconds", "0.1"]) == 0
