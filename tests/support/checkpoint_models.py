"""Small checkpoints to compress, and files that are wrong in one place."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

SHARD = "model-00001-of-00002.safetensors"
"""A shard of `write_model`."""

Entry = tuple[str, str, tuple[int, ...], bytes]
"""Name, dtype, shape, content."""


def weights(numel: int, seed: int, dtype: str = "BF16") -> bytes:
    """Bytes of numbers as trained weights have them: normal, of one scale for each run of 4096."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(numel).astype(np.float32) * 0.02
    values *= np.repeat(np.exp(generator.standard_normal(-(-numel // 4096)) * 0.3), 4096)[:numel].astype(np.float32)
    types = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F8_E4M3": ml_dtypes.float8_e4m3fn}
    return values.astype(types[dtype]).tobytes()


def random_bytes(nbytes: int, seed: int) -> bytes:
    """Bytes that nothing compresses."""
    return np.random.default_rng(seed).bytes(nbytes)


def container(entries: list[Entry], metadata: Mapping[str, str] | None = None, padding: int = 0) -> bytes:
    """A safetensors file with these tensors in this order, its header padded with so many spaces."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    raw = json.dumps(header).encode() + b" " * padding
    return len(raw).to_bytes(8, "little") + raw + b"".join(entry[3] for entry in entries)


def layer(index: int, seed: int, width: int = 96) -> list[Entry]:
    """The tensors of one layer: a large one that shrinks, a norm that is too small to, and one that is random."""
    prefix = f"model.layers.{index}"
    return [
        (f"{prefix}.mlp.up_proj.weight", "BF16", (width, 2 * width), weights(2 * width * width, seed)),
        (f"{prefix}.norm.weight", "BF16", (width,), weights(width, seed + 1)),
        (f"{prefix}.mlp.scales", "U8", (2000,), random_bytes(2000, seed + 2)),
        (f"{prefix}.attn.weight", "F32", (width, width), weights(width * width, seed + 3, "F32")),
    ]


def write_model(root: Path, *, num_shards: int = 2, config: Mapping[str, Any] | None = None, width: int = 96) -> None:
    """A directory as a hub has it: shards, index, configuration, tokenizer, a pickle, a subfolder with a model."""
    root.mkdir(parents=True)
    weight_map = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        entries = layer(shard, 10 * shard, width)
        (root / name).write_bytes(container(entries, {"format": "pt"}, padding=shard))
        weight_map |= {entry[0]: name for entry in entries}
    index = {"metadata": {"total_size": 12345}, "weight_map": weight_map}
    (root / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    # Not as json.dumps would write it.
    (root / "config.json").write_text(
        json.dumps({"model_type": "llama", "rms_norm_eps": 1e-05, **(config or {})}) + "\r\n"
    )
    (root / "tokenizer.json").write_text('{"vocab": "\u00e4\u4e2d\u6587"}', encoding="utf-8")
    (root / "training_args.bin").write_bytes(b"\x80\x04pickle")
    (root / "empty.txt").write_bytes(b"")
    (root / "vae").mkdir()
    (root / "vae" / "config.json").write_text('{"_class_name": "AutoencoderKL"}')
    (root / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(container(layer(7, 70, width)))
    (root / "assets" / "deep").mkdir(parents=True)
    (root / "assets" / "deep" / "image.png").write_bytes(random_bytes(3000, 5))


def tree_hashes(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a directory, by relative path."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def contents(root: Path) -> dict[str, bytes]:
    """The bytes of every file of a directory, by relative path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def read_header(path: Path) -> dict[str, Any]:
    """The JSON of a safetensors file, read the simple way."""
    data = path.read_bytes()
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def edit_manifest(root: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Change a manifest, with a checksum that is right again."""
    body = json.loads((root / "tensorwire.json").read_bytes())
    del body["checksum"]
    change(body)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["checksum"] = hashlib.sha256(canonical.encode()).hexdigest() if sign else "0" * 64
    (root / "tensorwire.json").write_text(json.dumps(body))
