"""What a wheel has to do in a bare environment: `python acceptance.py` with tensorwire-job and tensorwire alone.

Loads each library; starts a program with the probe, and judges the job of one rank that is none; shows the help, of
tensorwire-job and of tensorwire job.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorwire_job
from tensorwire_job.version import __version__


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program beside this interpreter, or the interpreter."""
    program = str(Path(sys.executable).with_name(command[0]))
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = {**own, "TENSORWIRE_PROBE_DIR": str(folder / "pages"), "XDG_RUNTIME_DIR": str(folder)}
    return subprocess.run([program, *command[1:]], cwd=folder, env=env, check=False, capture_output=True, text=True)


def main() -> None:
    package = Path(tensorwire_job.__file__).parent
    assert Path(sys.prefix) in package.parents, f"{package} is not what was installed in {sys.prefix}"
    libraries = sorted(package.glob("*.so"))
    assert len(libraries) == 2, libraries
    for library in libraries:
        ctypes.CDLL(str(library))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in (("tensorwire-job",), ("tensorwire", "job")):
            shown = run(*command, "--help", folder=folder)
            assert shown.returncode == 0, shown.stderr
            assert "diagnose" in shown.stdout
        (folder / "train.py").write_text("print('trained')\n")
        trained = run("python", "-m", "tensorwire_job", "train.py", folder=folder)
        assert (trained.returncode, trained.stdout) == (0, "trained\n"), trained.stderr
        asked = run("tensorwire-job", "diagnose", "--dir", str(folder / "nothing"), folder=folder)
        assert asked.returncode == 1, asked.stdout + asked.stderr
        assert "torchrun ARGS -m tensorwire_job train.py" in asked.stderr
    print(f"tensorwire-job {__version__} on Python {sys.version.split()[0]}: started and asked")


if __name__ == "__main__":
    main()
