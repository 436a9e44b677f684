"""Install a wheel into an empty environment of each Python that is here, and run acceptance.py in it.

``python -m tests.system.wheel.install WHEEL VERSION...``: versions such as 3.10. One that is not here is named and left
out; if none is here, that is an error.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.system.interpreters import interpreter

ACCEPTANCE = Path(__file__).with_name("acceptance.py")


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
