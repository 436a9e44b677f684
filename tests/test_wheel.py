"""A wheel holds a package and its libraries, for every Python, and nothing else."""

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


PRODUCTS = {
    "tensorwire": (".", "core", {"_tensorwire.so"}, "tensorwire = tensorwire.__main__:main"),
    "tensorwire_job": (
        "job",
        "job",
        {"_tensorwire_probe.so", "libnccl-profiler-tensorwire.so"},
        "job = tensorwire_job.cli:command",
    ),
}


@pytest.fixture(scope="module")
def wheels(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("scikit_build_core")
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    found = {}
    for package, (folder, build, libraries, _) in PRODUCTS.items():
        # As make installs it, in the folder where it was compiled for that: nothing is compiled again.
        targets = ";".join(name.removeprefix("lib").removesuffix(".so") for name in sorted(libraries))
        settings = {
            "build-dir": repository / "build" / build,
            "build.targets": targets,
            "cmake.define.TW_TESTS": "ON",
            "cmake.define.TW_WERROR": "ON",
        }
        command = [
            *pip,
            *(f"--config-settings={name}={value}" for name, value in settings.items()),
            f"--wheel-dir={out}",
        ]
        done = subprocess.run([*command, str(repository / folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (found[package],) = out.glob(f"{package}-*.whl")
    return found


@pytest.mark.parametrize("product", PRODUCTS)
def test_wheel_contents(wheels: dict[str, Path], repository: Path, product: str) -> None:
    wheel, (folder, _, libraries, entry_point) = wheels[product], PRODUCTS[product]
    tags = wheel.stem.split("-")[-3:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"

    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (entry_points,) = [name for name in names if name.endswith("/entry_points.txt")]
        assert entry_point in archive.read(entry_points).decode()
    package = {name for name in names if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"src/{product}"],
        cwd=repository / folder,
        capture_output=True,
        text=True,
        check=True,
    )
    sources = {name.removeprefix("src/") for name in tracked.stdout.split()}
    assert f"{product}/py.typed" in sources
    assert package == sources | {f"{product}/{library}" for library in libraries}
    info = {name.split("/", 1)[1] for name in names - package}
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_reference_is_a_wheel_for_every_machine(repository: Path, tmp_path: Path) -> None:
    """It needs NumPy alone, and has the files that the tests import."""
    pytest.importorskip("scikit_build_core")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "-w", tmp_path]
    subprocess.run([*command, "--no-build-isolation", repository / "reference"], check=True)
    (wheel,) = tmp_path.glob("tensorwire_reference-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith("/METADATA")]
    sources = (repository / "reference").glob("tensorwire_reference/*.py")
    package = {name for name in names if ".dist-info/" not in name}
    assert package == {path.relative_to(repository / "reference").as_posix() for path in sources}
    assert re.findall(r"^Requires-Dist: (\w+)", metadata, re.MULTILINE) == ["numpy"]
    assert {name.split("/", 1)[1] for name in names - package} == {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}


def test_library_exports_the_c_abi_alone(wheels: dict[str, Path], repository: Path, tmp_path: Path) -> None:
    """Nothing else is visible, and no C++ runtime is needed where the wheel is installed."""
    with zipfile.ZipFile(wheels["tensorwire"]) as archive:
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
