"""The wheel holds the package and its library, for every Python, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("wheel")  # one process builds it once


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    settings = [f"--config-settings=build-dir={out / 'build'}", f"--wheel-dir={out}"]
    done = subprocess.run([*command, *settings, str(repository)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_wheel_contents(wheel: Path, repository: Path) -> None:
    tags = wheel.stem.split("-")[-3:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"

    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (entry_points,) = [name for name in names if name.endswith("/entry_points.txt")]
        assert "tensorwire = tensorwire.__main__:main" in archive.read(entry_points).decode()
    package = {name for name in names if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/tensorwire"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    sources = {name.removeprefix("src/") for name in tracked.stdout.split()}
    assert "tensorwire/py.typed" in sources
    libraries = {"_tensorwire.so", "_tensorwire_probe.so", "libnccl-profiler-tensorwire.so"}
    assert package == sources | {f"tensorwire/{library}" for library in libraries}
    info = {name.split("/", 1)[1] for name in names - package}
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_library_exports_the_c_abi_alone(wheel: Path, repository: Path, tmp_path: Path) -> None:
    """Nothing else is visible, and no C++ runtime is needed where the wheel is installed."""
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("tensorwire/_tensorwire.so", tmp_path)
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[-1].split("@")[0] for line in symbols.stdout.splitlines()}
    header = (repository / "core/include/tensorwire.h").read_text()
    declared = set(re.findall(r"^TW_API [^(]*?(tw_\w+)\(", header, re.MULTILINE))
    assert exported == declared
    dynamic = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True)
    needed = {line.split()[1] for line in dynamic.stdout.splitlines() if line.strip().startswith("NEEDED")}
    assert needed
    assert not [name for name in needed if "libstdc++" in name or "libgcc" in name]
