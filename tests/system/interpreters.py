"""Where the Python of a version is: ``python -m tests.system.interpreters 3.10`` prints the path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which


def interpreter(version: str) -> str | None:
    """A Python of this version that runs and can make environments: on PATH, or one of pyenv's.

    What pyenv puts on PATH for a version that is not chosen there is a program that fails, so each one is asked.
    """
    candidates = [which(f"python{version}"), sys.executable]
    candidates += map(str, sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")))
    question = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", question], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def main(version: str) -> None:
    path = interpreter(version)
    if path is None:
        raise SystemExit(f"Python {version} with its module ensurepip is needed, on PATH or in ~/.pyenv/versions")
    print(path)


if __name__ == "__main__":
    main(sys.argv[1])
