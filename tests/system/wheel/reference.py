"""What the wheel of the reference has to do in a bare environment: `python reference.py` with it and NumPy alone.

Decodes every golden frame, and restores every golden file and directory that has an original by the command; compares
every byte.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np
import tensorwire_reference

FRAMES = Path(__file__).resolve().parents[2] / "golden" / "v1"
GOLDEN = FRAMES.parent / "checkpoints" / "v1"
OTHERS = ("ml_dtypes", "safetensors", "tensorwire", "torch", "xxhash")


def digests(path: Path) -> dict[str, str]:
    """SHA-256 of the files of a directory by relative path, or of the file that it is."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    found = {each.relative_to(path).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
    return {"" if name == "." else name: digest for name, digest in found.items()}


def decode_frames() -> int:
    """How many golden frames were decoded."""
    entries = json.loads((FRAMES / "manifest.json").read_text())["frames"]
    for entry in entries:
        base = None if entry["base"] is None else (FRAMES / "bases" / entry["base"]).read_bytes()
        data = tensorwire_reference.decode((FRAMES / f"{entry['name']}.tw").read_bytes(), base).data
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry["name"]
    return len(entries)


def main() -> None:
    package = Path(tensorwire_reference.__file__).parent
    assert Path(sys.prefix) in package.parents, f"{package} is not what was installed in {sys.prefix}"
    there = [name for name in OTHERS if importlib.util.find_spec(name) is not None]
    assert not there, f"the environment has {there}"
    entries = [entry for entry in json.loads((GOLDEN / "manifest.json").read_text())["valid"] if entry["originals"]]
    with tempfile.TemporaryDirectory() as name:
        for number, entry in enumerate(entries):
            out = Path(name, str(number))
            named = entry["base"] if isinstance(entry["base"], list) else [entry["base"]]
            base = [word for path in named if path is not None for word in ("--base", GOLDEN / path)]
            command = [sys.executable, "-I", "-m", "tensorwire_reference", "decompress", GOLDEN / entry["path"], *base]
            subprocess.run([*command, "-o", out], check=True, stdout=subprocess.DEVNULL)
            assert digests(out) == entry["originals"], entry["path"]
    version = f"{metadata.version('tensorwire-reference')} on Python {sys.version.split()[0]}, NumPy {np.__version__}"
    print(f"tensorwire-reference {version}: {decode_frames()} frames decoded, {len(entries)} originals restored")


if __name__ == "__main__":
    main()
