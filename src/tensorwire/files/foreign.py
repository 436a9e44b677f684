"""Files that are no safetensors files: what they are, by their first bytes, and what to do with them."""

from __future__ import annotations

import re
from typing import NamedTuple

from .header import MAX_HEADER_NBYTES

PREFIX_NBYTES = 512
"""How much of a file `recognise` wants to see."""


class Foreign(NamedTuple):
    """A kind of file.

    Attributes:
        name: with its article.
        advice: what to do to get a safetensors file.
        holds_tensors: whether it is a model in another format.
    """

    name: str
    advice: str
    holds_tensors: bool = False


_DOWNLOAD = "download the file again and look at what the server says"
_CONVERT = (
    "convert it: safetensors.torch.save_file({k: v.clone().contiguous() for k, v in torch.load(PATH, "
    'weights_only=True).items()}, "model.safetensors", {"format": "pt"})'
)
_PICKLE = f"reading a pickle can run any code, so tensorwire does not; {_CONVERT}"
_TORCH = f"compress takes it by its path if no code is in it (docs/pytorch-files.md); to load its tensors, {_CONVERT}"
_NPZ = (
    'convert it: safetensors.numpy.save_file({k: v.copy(order="C") for k, v in numpy.load(PATH).items()}, '
    '"model.safetensors")'
)
_NPY = 'convert it: safetensors.numpy.save_file({"array": numpy.load(PATH).copy(order="C")}, "model.safetensors")'

TORCH_FILE = Foreign("a torch file", _TORCH, True)
TORCH_PICKLE = Foreign("a torch file of the format before torch 1.6", _PICKLE, True)

# The first that fits counts. A zip names its first member at byte 30; torch fills up behind the name with FB.
_KINDS = (
    (rb"GGUF|ggml|ggjt", Foreign("a GGUF file", "get the model in the safetensors format", True)),
    (rb"PK\x03\x04.{26}[^\0]{1,200}\.npy", Foreign("an npz file of NumPy", _NPZ, True)),
    (rb"PK\x03\x04.{26}[^\0]{1,200}/(data\.pkl|data/0FB|\.format_version)", TORCH_FILE),
    (rb"PK\x03\x04", Foreign("a zip archive", "unpack it and name the .safetensors file or the directory in it")),
    (rb"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\.", TORCH_PICKLE),  # its magic number, pickled
    (rb"\x80[\x02-\x05][^\0]", Foreign("a pickle, as older torch files are", _PICKLE, True)),
    (rb"\x93NUMPY", Foreign("an npy file of NumPy", _NPY, True)),
    (rb"\x89HDF\r\n\x1a\n", Foreign("an HDF5 file", "get the model in the safetensors format, or convert it", True)),
    (rb"\x08[\x01-\x20][\x12\x1a\x3a\x42]", Foreign("an ONNX model", "get the model in the safetensors format", True)),
    (
        rb"(?:[\x81-\x8f]|\xde..|\xdf....)(?:[\xa1-\xbf]|\xd9.|\xda..)[A-Za-z0-9_./-]",
        Foreign("a msgpack file, as Flax writes it", "get the model in the safetensors format, or convert it", True),
    ),
    (rb"\x93TWF\r\n\x1a\n", Foreign("a single frame of tensorwire", "decode it with tensorwire.decompress")),
    (rb"\x1f\x8b\x08", Foreign("a gzip file", "unpack it with gunzip")),
    (rb"\x28\xb5\x2f\xfd", Foreign("a zstd file", "unpack it with unzstd")),
    (rb"version https://git-lfs", Foreign("a Git LFS pointer", "fetch the file itself with git lfs pull")),
    (
        rb"(?i)\s*<(!doctype html|html|head|body)",
        Foreign("an HTML page, such as an error, a login or a list of files", _DOWNLOAD),
    ),
    (rb"(?i)\s*<(\?xml|error)", Foreign("an XML text, such as the error of a storage service", _DOWNLOAD)),
    (
        rb"\s*[\[{][\s\[{\"\]}0-9tfn-]",
        Foreign("a JSON text", "name the .safetensors file, or the directory with all files of the model"),
    ),
)
_BOM = b"\xef\xbb\xbf"


def recognise(prefix: bytes) -> Foreign | None:
    """What kind of file begins so; None for a safetensors file, and for what is unknown.

    Args:
        prefix: the first PREFIX_NBYTES bytes of a file, or all if it is shorter.
    """
    if prefix[8:9] == b"{" and int.from_bytes(prefix[:8], "little") <= MAX_HEADER_NBYTES:
        return None
    text = prefix.removeprefix(_BOM)
    for pattern, kind in _KINDS:
        if re.match(pattern, text, re.DOTALL):
            return kind
    return None
