"""What compress and transcode may replace: what tensorwire wrote, never an original."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ...errors import FormatError
from ..file.reader import StoredFile
from .manifest import SAFETENSORS, read_manifest
from .paths import MANIFEST_NAME, is_safetensors

if TYPE_CHECKING:
    from pathlib import Path

_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_MODEL_SUFFIXES = (*_PICKLES, ".gguf", ".h5", ".msgpack", ".npz", ".onnx", ".safetensors")
_ADVICE = "move it, or name another destination"


def made_by_us(path: Path) -> frozenset[str]:
    """The files that may go with the directory `path`: all that its manifest lists; none of a file.

    Raises:
        FileExistsError: it is not a compressed checkpoint, or not only one, or a file that may be an original.
    """
    if not path.is_dir():
        _check_file(path)
        return frozenset()
    try:
        manifest = read_manifest(path)
    except FormatError as error:
        raise _refusal(path, f"has a {MANIFEST_NAME} that does not say what tensorwire wrote: {error}") from None
    if manifest is None:
        raise _refusal(path, f"has no {MANIFEST_NAME}: tensorwire did not write it, so it is never replaced")
    for file in manifest.files:
        place = path.joinpath(*file.path.split("/"))
        if not place.is_file() or place.is_symlink():
            continue
        if file.kind == SAFETENSORS or is_safetensors(file.path):  # whatever a manifest claims
            _check_file(place)
        elif _is_model(place) and place.stat().st_size not in (0, file.nbytes):
            raise _refusal(place, f"is not the model that {MANIFEST_NAME} lists, so it is never replaced")
    return frozenset({MANIFEST_NAME, *(file.path for file in manifest.files)})


def _check_file(path: Path) -> None:
    """Raise FileExistsError for a safetensors file without anything of ours, and for every other model."""
    if path.stat().st_size == 0:
        return
    try:
        with StoredFile(path) as stored:
            if not stored.compressed:
                raise _refusal(path, "is a safetensors file that tensorwire did not write, so it is never replaced")
    except FormatError:
        if _is_model(path):
            raise _refusal(path, "looks like a model that tensorwire did not write, so it is never replaced") from None


def _is_model(path: Path) -> bool:
    return path.name.lower().endswith(_MODEL_SUFFIXES)


def _refusal(path: Path, text: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"{text}; {_ADVICE}", str(path))
