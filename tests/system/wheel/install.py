"""Install wheels into an empty environment of each Python that is here, and run a program in it.

``python -m tests.system.wheel.install PROGRAM WHEEL... --pythons VERSION...``: versions such as 3.10. One that is not
here is named and left out; if none is here, that is an error.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from tests.system.interpreters import interpreter


def check(program: Path, wheels: list[Path], python: str) -> None:
    """Away from the source tree, so that only the wheels can be imported."""
    with tempfile.TemporaryDirectory() as name:
        environment = Path(name) / "environment"
        subprocess.run([python, "-m", "venv", environment], check=True)
        own = environment / "bin" / "python"
        pip = [own, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", *wheels], check=True, cwd=name)
        subprocess.run([own, "-I", program], check=True, cwd=name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--pythons", nargs="+", required=True)
    options = parser.parse_args()
    found = {version: interpreter(version) for version in options.pythons}
    for version, python in found.items():
        if python is None:
            print(f"Python {version}: not tested, there is none here")
        else:
            check(options.program.resolve(), [wheel.resolve() for wheel in options.wheels], python)
    if not any(found.values()):
        raise SystemExit(f"none of Python {', '.join(found)} is here: the wheels were not tested")


if __name__ == "__main__":
    main()
