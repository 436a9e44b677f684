"""Install a wheel into an empty environment of each Python that is here, and run acceptance.py in it.

python tests/system/wheel/install.py WHEEL VERSION...: versions such as 3.10. One that is not here is named and left
out; if none is here, that is an error.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

ACCEPTANCE = Path(__file__).with_name("acceptance.py")


def interpreter(version: str) -> str | None:
    """A Python of this version that runs: on PATH, or one of pyenv's."""
    candidates = [which(f"python{version}"), sys.executable]
    candidates += map(str, sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")))
    question = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", question], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def check(wheel: Path, python: str) -> None:
    """Away from the source tree, so that only the wheel can be imported."""
    with tempfile.TemporaryDirectory() as name:
        environment = Path(name) / "environment"
        subprocess.run([python, "-m", "venv", environment], check=True)
        own = environment / "bin" / "python"
        subprocess.run([own, "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel], check=True, cwd=name)
        subprocess.run([own, "-I", ACCEPTANCE], check=True, cwd=name)


def main() -> None:
    wheel, *versions = sys.argv[1:]
    found = {version: interpreter(version) for version in versions}
    for version, python in found.items():
        if python is None:
            print(f"Python {version}: not tested, there is none here")
        else:
            check(Path(wheel).resolve(), python)
    if not any(found.values()):
        raise SystemExit(f"none of Python {', '.join(versions)} is here: the wheel was not tested")


if __name__ == "__main__":
    main()
