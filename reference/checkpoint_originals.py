"""The originals of the golden files and directories that `make_checkpoints` writes."""

import zipfile
from io import BytesIO

from reference.tensorwire_reference.checkpoint_writer import dump, write_container
from reference.tensorwire_reference.containers import Tensor
from tests.support.checkpoint_models import random_bytes, weights

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def model_tensors() -> list[Tensor]:
    return [
        Tensor("model.up.weight", "BF16", (32, 64), weights(2048, 1)),
        Tensor("model.norm.weight", "F32", (16,), weights(16, 2, "F32")),
        Tensor("scales", "U8", (300,), random_bytes(300, 3)),
        Tensor("head", "F32", (1024,), weights(1024, 4, "F32")),
    ]


def original_file() -> bytes:
    return write_container(model_tensors(), {"format": "pt", "\u00e4": "\n"})


def old_file() -> bytes:
    """What the delta is relative to: one word of each tensor but the last is another one."""
    changed = [tensor._replace(data=tensor.data[:-4] + b"\x01\x3f\x02\x3f") for tensor in model_tensors()[:-1]]
    return write_container([*changed, model_tensors()[-1]], {})


def original_directory() -> dict[str, bytes]:
    tensors = model_tensors()
    files = {path: write_container(tensors[2 * i : 2 * i + 2], {"format": "pt"}) for i, path in enumerate(SHARDS)}
    weight_map = {tensor.name: SHARDS[i // 2] for i, tensor in enumerate(tensors)}
    index = {"metadata": {"total_size": sum(len(tensor.data) for tensor in tensors)}, "weight_map": weight_map}
    config = {"model_type": "llama", "dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    return {**files, INDEX: dump(index), "config.json": dump(config), "notes/README.md": b"\xff as it is\n"}


BESIDE = {
    "second.safetensors": {"copy": ("first.safetensors", "w")},
    "third.safetensors": {"changed": ("second.safetensors", "copy")},
}


def files_beside() -> dict[str, bytes]:
    """Three files: the second has a tensor of the first under another name, the third one that is nearly the same."""
    data = weights(512, 5)
    contents = {"first": {"w": data}, "second": {"copy": data}, "third": {"changed": data[:-2] + b"\x01\x3f"}}
    return {
        f"{file}.safetensors": write_container([Tensor(name, "BF16", (512,), each) for name, each in found.items()], {})
        for file, found in contents.items()
    }


def small_file() -> bytes:
    """One tensor of equal words: a frame without a block of many bytes."""
    return write_container([Tensor("a.w", "BF16", (1024,), b"\x80\x3f" * 1024)], {})


def old_directory() -> dict[str, bytes]:
    words = b"\x80\x3f" * 1000 + b"\x81\x3f" * 24
    return {
        "config.json": b"{}",
        "model.safetensors": write_container([Tensor("a.w", "BF16", (1024,), words)], {}),
    }


STORAGES = {"data/0": "BF16", "data/1": "U8", "data/2": "F32"}


def torch_file() -> bytes:
    """What `torch.load` reads as a dict of three tensors. The third one's storage is too small to be a tensor."""
    storages = (weights(1024, 7), random_bytes(300, 8), b"\0\0\x80\x3f")
    classes = (("weight", b"BFloat16Storage", 1024), ("scales", b"ByteStorage", 300), ("step", b"FloatStorage", 1))
    members = {"data.pkl": b"\x80\x02}(" + b"".join(map(_pickled, range(3), classes)) + b"u.", "byteorder": b"little"}
    members |= {f"data/{key}": data for key, data in enumerate(storages)} | {"version": b"3\n"}
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"state/{name}"), data)
    return file.getvalue()


def _pickled(key: int, what: tuple[str, bytes, int]) -> bytes:
    """The opcodes of a name and of a tensor of one dimension."""
    name, storages, numel = what

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    size = b"J" + numel.to_bytes(4, "little")
    storage = b"(" + text("storage") + b"ctorch\n" + storages + b"\n" + text(str(key)) + text("cpu") + size + b"tQ"
    rebuilt = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + size + b"\x85K\1\x85\x89"
    return text(name) + rebuilt + b"ccollections\nOrderedDict\n)RtR"
