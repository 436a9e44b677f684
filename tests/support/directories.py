"""Directories in which several files hold the same tensors, and files of compressed ones that are forged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from tensorwire.files.header import build_header
from tensorwire.files.reader import CHECKSUM_KEY, StoredFile, header_checksum
from tests.support.checkpoint_models import container, weights

if TYPE_CHECKING:
    from pathlib import Path

NUMEL = 6000
"""Elements of a tensor that is large enough to be relative to one of another file."""


def tensors(seed: int, count: int = 3) -> dict[str, bytes]:
    """Weights by name, and one that is too small."""
    return {f"layer.{index}": weights(NUMEL, seed + index) for index in range(count)} | {"norm": weights(300, seed)}


def stepped(old: dict[str, bytes], seed: int) -> dict[str, bytes]:
    """The same after a training step."""
    generator = np.random.default_rng(seed)
    found = {}
    for name, data in old.items():
        values = np.frombuffer(data, ml_dtypes.bfloat16).astype(np.float32)
        values += generator.standard_normal(len(values)).astype(np.float32) * 1e-5
        found[name] = values.astype(ml_dtypes.bfloat16).tobytes()
    return found


def write(path: Path, content: dict[str, bytes], prefix: str = "") -> None:
    """A safetensors file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(container([(prefix + name, "BF16", (len(data) // 2,), data) for name, data in content.items()]))


def write_twice(root: Path, seed: int = 0) -> None:
    """A model, and the same tensors in another file under other names, in another order."""
    content = tensors(seed)
    write(root / "model.safetensors", content)
    write(root / "other.safetensors", dict(reversed(content.items())), "transformer.")


def write_run(root: Path, count: int, first: int = 9) -> list[dict[str, bytes]]:
    """Checkpoints of one training."""
    content = tensors(0)
    found = []
    for number in range(first, first + count):
        write(root / f"step-{number}" / "model.safetensors", content)
        found.append(content)
        content = stepped(content, number)
    return found


def forge(path: Path, /, **changes: str) -> None:
    """Change our metadata of a compressed file, with a right checksum: ``forge(path, path="a")``."""
    with StoredFile(path) as stored:
        header, data = stored.header, path.read_bytes()[stored.header.data_start :]
    metadata = header.metadata | {f"tensorwire.{key}": text for key, text in changes.items()}
    metadata[CHECKSUM_KEY] = header_checksum(metadata, header.entries)
    path.write_bytes(build_header(metadata, header.entries).prefix + data)
