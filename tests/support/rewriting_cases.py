"""Commands that replace what stands there, and what has become of the files after a run that came to a bad end."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from tensorwire.checkpoint import compress_checkpoint
from tests.support.checkpoint_models import container, layer, tree_hashes, write_model
from tests.support.deltas import next_layer

if TYPE_CHECKING:
    from pathlib import Path

SMALL = 40  # the width of models: enough for relative frames


class Case(NamedTuple):
    """A command, run where its files are.

    Attributes:
        needs: what is there, by name: what it is a copy of in the kit.
        result: the file or directory that it writes.
        by_file: whether each file of the result is the old or the new one, and not all of it.
    """

    command: str
    needs: dict[str, str]
    result: str = "x"
    by_file: bool = False


CASES = {
    "compress": Case("compress model x", {"model": "model"}),
    "compress again": Case("compress model x --force", {"model": "model", "x": "other"}),
    "compress a file": Case("compress a x --force", {"a": "a", "x": "small"}),
    "compress with a base": Case("compress new x --base model", {"new": "new", "model": "model"}),
    "decompress": Case("decompress packed x", {"packed": "packed"}),
    "decompress again": Case("decompress packed x --force", {"packed": "packed", "x": "new"}),
    "decompress a file": Case("decompress small x --force", {"small": "small", "x": "b"}),
    "transcode again": Case("transcode packed x --force --profile enec", {"packed": "packed", "x": "packed"}),
    "in place": Case("decompress delta --base x --in-place", {"delta": "delta", "x": "model"}, by_file=True),
    "replace": Case("compress x --replace", {"x": "model"}, by_file=True),
    "replace a file": Case("compress x --replace", {"x": "a"}),
    "in place, a file": Case("decompress d --base x --in-place", {"d": "d", "x": "a"}),
}


def write_kit(kit: Path) -> None:
    """What the cases need. It is small: each file costs a hundred runs."""
    kit.mkdir()
    write_model(kit / "model", num_shards=1, width=SMALL)
    shutil.rmtree(kit / "model" / "assets")
    for name in ("training_args.bin", "tokenizer.json", "model.safetensors.index.json"):
        (kit / "model" / name).unlink()
    (kit / "model" / "empty").mkdir()
    shutil.copytree(kit / "model", kit / "new")
    (kit / "new" / "model-00001-of-00001.safetensors").write_bytes(container(next_layer(0, 0, SMALL)))
    (kit / "new" / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(container(next_layer(7, 70, SMALL)))
    (kit / "new" / "config.json").write_text('{"model_type": "llama", "step": 2}')
    (kit / "a").write_bytes(container(layer(0, 0, SMALL)))
    (kit / "b").write_bytes(container(next_layer(0, 0, SMALL)))
    compress_checkpoint(kit / "model", kit / "packed")
    compress_checkpoint(kit / "model", kit / "other", profile="compact")
    compress_checkpoint(kit / "new", kit / "delta", base=kit / "model")
    compress_checkpoint(kit / "a", kit / "small")
    compress_checkpoint(kit / "b", kit / "d", base=kit / "a")


def build(place: Path, kit: Path, case: Case) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, origin in case.needs.items():
        source = kit / origin
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)


def tree(place: Path) -> dict[str, str]:
    """All that is in a directory: the hashes of files, and directories."""
    return {**tree_hashes(place), **{f"{path.relative_to(place)}/": "" for path in place.rglob("*") if path.is_dir()}}


def problems(case: Case, found: dict[str, str], old: dict[str, str], new: dict[str, str]) -> list[str]:
    """What is neither as it was nor as it is to be, staging directories aside; and a result of which only a part is
    new, where it is to be replaced as a whole."""
    counted = {path: digest for path, digest in found.items() if ".partial/" not in path}
    odd = [path for path in {*old, *new, *counted} if counted.get(path) not in (old.get(path), new.get(path))]
    if not case.by_file and counted not in (old, new):
        odd.append(f"a part of {case.result}")
    return sorted(odd)
