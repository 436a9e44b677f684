"""What a wheel has to do in a bare environment: `python acceptance.py` with tensorwire installed and nothing else.

Compresses a small checkpoint, verifies it, restores it and compares every byte; loads its library; shows the help.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorwire

NUMEL = 1 << 16


def write_model(path: Path) -> None:
    """A safetensors file of one BF16 tensor, made without NumPy: words of normal numbers, cut."""
    generator = random.Random(0)
    words = b"".join(struct.pack(">f", generator.gauss(0, 0.02))[1::-1] for _ in range(NUMEL))
    header = {"weights": {"dtype": "BF16", "shape": [NUMEL], "data_offsets": [0, len(words)]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + words)


def run(folder: Path, *arguments: str) -> str:
    """What the command prints. It is the one beside this interpreter."""
    command = [str(Path(sys.executable).with_name("tensorwire")), *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def main() -> None:
    package = Path(tensorwire.__file__).parent
    assert Path(sys.prefix) in package.parents, f"{package} is not what was installed in {sys.prefix}"
    (library,) = package.glob("*.so")
    ctypes.CDLL(str(library))
    assert "compress" in run(package, "--help")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, packed, copy = (folder / f"{stem}.safetensors" for stem in ("model", "packed", "copy"))
        write_model(model)
        run(folder, "compress", model.name, packed.name)
        run(folder, "verify", packed.name)
        run(folder, "decompress", packed.name, copy.name)
        assert copy.read_bytes() == model.read_bytes()
        ratio = model.stat().st_size / packed.stat().st_size
        assert ratio > 1.3, ratio
        with tensorwire.open_file(packed) as file:
            assert file.get_tensor("weights").tobytes() == model.read_bytes()[-2 * NUMEL :]
    print(f"tensorwire {tensorwire.__version__} on Python {sys.version.split()[0]}: restored, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
