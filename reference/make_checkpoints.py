"""Write the golden files and directories of docs/checkpoints.md, version 1, from the root of the repository:
`PYTHONPATH=. python -m reference.make_checkpoints`.

See tests/golden/README.md for what they are, and when this is allowed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from reference.tensorwire_reference.checkpoint import (
    MARKER,
    PREFIX,
    pack,
    payload_name,
    sha256,
)
from reference.tensorwire_reference.checkpoint_writer import (
    compress_directory,
    compress_file,
    dump,
    frames_file,
    sign,
    signed_manifest,
    write_container,
)
from reference.tensorwire_reference.containers import Container, Tensor, read_container
from tests.support.checkpoint_models import random_bytes, weights

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "checkpoints" / "v1"
MAX_TOTAL_NBYTES = 150_000
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
NEW = "later features"
"""Two features that version 1 does not have."""


class Golden(NamedTuple):
    """A file ("" is its only path), or a directory, and what the list says of it."""

    path: str
    files: dict[str, bytes]
    entry: dict[str, Any]


def main() -> None:
    valid, invalid = _valid(), _invalid()
    files = {"bases/old.safetensors": _old()}
    for golden in (*valid, *invalid):
        files |= {f"{golden.path}/{path}" if path else golden.path: data for path, data in golden.files.items()}
    total = sum(map(len, files.values()))
    if total > MAX_TOTAL_NBYTES:
        raise SystemExit(f"the files take {total} bytes together; at most {MAX_TOTAL_NBYTES} belong in a repository")
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for path, data in files.items():
        (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
        (GOLDEN / path).write_bytes(data)
    lists = (",\n".join(json.dumps({"path": g.path, **g.entry}) for g in goldens) for goldens in (valid, invalid))
    (GOLDEN / "manifest.json").write_text('{{"version": 1, "valid": [\n{}\n], "invalid": [\n{}\n]}}\n'.format(*lists))
    print(f"{len(valid)} that are read, {len(invalid)} that are refused, {total} bytes")


# Originals ------------------------------------------------------------------------------------------------------------


def _model(seed: int = 1) -> list[Tensor]:
    return [
        Tensor("model.up.weight", "BF16", (32, 64), weights(2048, seed)),
        Tensor("model.norm.weight", "F32", (16,), weights(16, seed + 1, "F32")),
        Tensor("scales", "U8", (300,), random_bytes(300, seed + 2)),
        Tensor("head", "F32", (1024,), weights(1024, seed + 3, "F32")),
    ]


def _original() -> bytes:
    return write_container(_model(), {"format": "pt", "\u00e4": "\n"})


def _old() -> bytes:
    """What the delta is relative to: one word of each tensor but the last is another one."""
    changed = [tensor._replace(data=tensor.data[:-4] + b"\x01\x3f\x02\x3f") for tensor in _model()[:-1]]
    return write_container([*changed, _model()[-1]], {})


def _directory() -> dict[str, bytes]:
    tensors = _model()
    files = {path: write_container(tensors[2 * i : 2 * i + 2], {"format": "pt"}) for i, path in enumerate(SHARDS)}
    weight_map = {tensor.name: SHARDS[i // 2] for i, tensor in enumerate(tensors)}
    index = {"metadata": {"total_size": sum(len(tensor.data) for tensor in tensors)}, "weight_map": weight_map}
    config = {"model_type": "llama", "dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    return {**files, INDEX: dump(index), "config.json": dump(config), "notes/README.md": b"\xff as it is\n"}


BESIDE = {
    "second.safetensors": {"copy": ("first.safetensors", "w")},
    "third.safetensors": {"changed": ("second.safetensors", "copy")},
}


def _files_beside() -> dict[str, bytes]:
    """Three files: the second has a tensor of the first under another name, the third one that is nearly the same."""
    data = weights(512, 5)
    contents = {"first": {"w": data}, "second": {"copy": data}, "third": {"changed": data[:-2] + b"\x01\x3f"}}
    return {
        f"{file}.safetensors": write_container([Tensor(name, "BF16", (512,), each) for name, each in found.items()], {})
        for file, found in contents.items()
    }


def _small() -> bytes:
    """One tensor of equal words: a frame without a block of many bytes."""
    return write_container([Tensor("a.w", "BF16", (1024,), b"\x80\x3f" * 1024)], {})


# What is read ---------------------------------------------------------------------------------------------------------


def _valid() -> list[Golden]:
    original, directory, tensors = _original(), _directory(), _model()
    old = read_container(_old()).tensors
    packed = read_container(compress_file(original, "fast", alone=True))
    # Another tool may order tensors as it likes, and drops what it does not know of the metadata.
    foreign = [tensor for tensor in packed.tensors if tensor.dtype != "U8"]
    foreign += [tensor for tensor in packed.tensors if tensor.dtype == "U8"]
    return [
        _file("alone", compress_file(original, "fast", alone=True), tensors, original),
        _file("compact", compress_file(original, "compact", alone=True), tensors, original),
        _file("optional", _signed(packed, {"later": "skip me", "later:scales": "skip me too"}), tensors, original),
        _file("required-empty", _signed(packed, {"required": " "}), tensors, original),
        _file("rewritten", write_container(foreign, {"format": "pt"}), tensors),
        _file("frames", frames_file(original, "fast"), tensors),
        _file("frames-optional", *_frames_beside_others()),
        _file("names", *_names()),
        _file("delta", compress_file(original, "fast", alone=True, base=old, base_name="old"), tensors, original, True),
        _whole("directory", compress_directory(directory, "fast"), tensors, directory),
        _whole(
            "beside", compress_directory(_files_beside(), "fast", beside=BESIDE), _all(_files_beside()), _files_beside()
        ),
        _whole("directory-optional", _with_optional(compress_directory(directory, "fast")), tensors, directory),
    ]


def _file(name: str, data: bytes, tensors: list[Tensor], original: bytes | None = None, delta: bool = False) -> Golden:
    originals = None if original is None else {"": sha256(original)}
    return Golden(f"valid/{name}.safetensors", {"": data}, _entry(tensors, originals, delta))


def _whole(name: str, files: dict[str, bytes], tensors: list[Tensor], originals: dict[str, bytes]) -> Golden:
    hashes = {path: sha256(data) for path, data in originals.items()}
    return Golden(f"valid/{name}", files, _entry(tensors, hashes, False))


def _all(files: dict[str, bytes]) -> list[Tensor]:
    return [tensor for data in files.values() for tensor in read_container(data).tensors]


def _entry(tensors: list[Tensor], originals: dict[str, str] | None, delta: bool) -> dict[str, Any]:
    return {
        "base": "bases/old.safetensors" if delta else None,
        "originals": originals,
        "tensors": {t.name: {"dtype": t.dtype, "shape": t.shape, "sha256": sha256(t.data)} for t in tensors},
    }


def _signed(container: Container, ours: dict[str, str]) -> bytes:
    """A file with more metadata of ours, or other."""
    metadata = {**container.metadata, **{PREFIX + key: text for key, text in ours.items()}}
    return write_container(container.tensors, sign(metadata, container.tensors))


def _frames_beside_others() -> tuple[bytes, list[Tensor]]:
    """Frames as other libraries write them, with a key that nobody knows, and an F4 tensor that is none."""
    pairs = Tensor("pairs", "F4", (2, 2), b"\x21\x43")
    found = read_container(frames_file(_small(), "fast"))
    return write_container([*found.tensors, pairs], {**found.metadata, f"{PREFIX}later": "skip me"}), [
        *read_container(_small()).tensors,
        pairs,
    ]


def _names() -> tuple[bytes, list[Tensor]]:
    """Tensors that look like payloads and markers, beside a compressed one."""
    alike = [
        Tensor("marker_alone.w", *MARKER, b""),
        Tensor("empty.w", *MARKER, b""),
        Tensor("empty._w_tensorwire", "U8", (0,), b""),
        Tensor("other_dtype.w", *MARKER, b""),
        Tensor("square.w", *MARKER, b""),
        Tensor("other_shape.w", MARKER[0], (0, 1), b""),
        Tensor("other_marker.w", "BF16", (0,), b""),
        Tensor("payload_alone._w_tensorwire", "U8", (4,), b"\x93TWF"),
        Tensor("other_dtype._w_tensorwire", "I8", (4,), b"\x93TWF"),
        Tensor("square._w_tensorwire", "U8", (2, 2), b"\x93TWF"),
        Tensor("other_shape._w_tensorwire", "U8", (4,), b"\x93TWF"),
        Tensor("other_marker._w_tensorwire", "U8", (4,), b"\x93TWF"),
        Tensor("no_key", "F4", (2,), b"\x21"),
    ]
    found = read_container(compress_file(_small(), "fast", alone=False))
    return _signed(found._replace(tensors=[*found.tensors, *alike]), {}), [*read_container(_small()).tensors, *alike]


def _with_optional(files: dict[str, bytes]) -> dict[str, bytes]:
    """A directory with a key or member that nobody knows wherever one may stand."""
    config, index = json.loads(files["config.json"]), json.loads(files[INDEX])
    config["quantization_config"]["later"] = ["skip me"]
    index["metadata"][f"{PREFIX}later"] = index["later"] = "skip me"
    files = {**files, "config.json": dump(config), INDEX: dump(index)}
    for path in SHARDS:
        files[path] = _signed(read_container(files[path]), {"later": "skip me"})
    manifest = json.loads(files["tensorwire.json"])
    for file in manifest["files"]:
        file["later"] = {"skip": 1}
        if file["kind"] == "replaced":
            file["stored_sha256"] = sha256(files[file["path"]])
    more = {"later": [None], "profile": "any text", "directories": []}
    return {**files, "tensorwire.json": signed_manifest({**manifest, **more})}


# What is refused ------------------------------------------------------------------------------------------------------


def _invalid() -> list[Golden]:
    files, originals = _invalid_files(), [*_invalid_originals(), *_invalid_beside()]
    return [*files, *originals, *_invalid_indexes(), *_invalid_configs(), *_invalid_manifests()]


def _refused(name: str, files: dict[str, bytes], error: str, read: str) -> Golden:
    return Golden(f"invalid/{name}", files, {"error": f"{error}Error", "read": read, "base": None})


def _invalid_files() -> list[Golden]:
    small = read_container(compress_file(_small(), "fast", alone=False))
    marker, payload = small.tensors
    frames = read_container(frames_file(_small(), "fast"))
    plain = read_container(compress_file(write_container(_model()[1:3], {}), "fast", alone=False))
    nothing = write_container([Tensor("scales", "F32", (0, 4), b"")], {})
    empty = read_container(compress_file(nothing, "fast", alone=False))
    other_hash = {f"hash:{name}": "0" * 32 for name in ("a.w", "scales")}
    unsigned = {key: text for key, text in small.metadata.items() if key != f"{PREFIX}checksum"}
    wrong = {**small.metadata, f"{PREFIX}checksum": "0" * 32}
    unversioned = small._replace(metadata={f"{PREFIX}profile": "fast"})
    old = [tensor._replace(data=bytes(2048)) for tensor in read_container(_small()).tensors]

    def holding(data: bytes) -> bytes:
        return _signed(small._replace(tensors=[marker, payload._replace(shape=(len(data),), data=data)]), {})

    cases = {
        "required": (_signed(small, {"required": NEW}), "UnsupportedVersion"),
        "version": (_signed(small, {"version": "2"}), "UnsupportedVersion"),
        "version-none": (_signed(unversioned, {}), "UnsupportedVersion"),
        "checksum": (write_container(small.tensors, wrong), "CorruptData"),
        "checksum-none": (write_container(small.tensors, unsigned), "CorruptData"),
        "frames-other": (write_container(frames.tensors, {f"{PREFIX}frames": "F6"}), "UnsupportedVersion"),
        "frames-required": (
            write_container(frames.tensors, {**frames.metadata, f"{PREFIX}required": NEW}),
            "UnsupportedVersion",
        ),
        "frames-version": (
            write_container(frames.tensors, {**frames.metadata, f"{PREFIX}version": "2"}),
            "UnsupportedVersion",
        ),
        "frames-none": (write_container([Tensor("w", "F4", (512,), bytes(256))], frames.metadata), "CorruptData"),
        "payload-none": (holding(bytes(256)), "CorruptData"),
        "payload-short": (holding(payload.data[:-32]), "TruncatedData"),
        "payload-long": (holding(payload.data + bytes(32)), "CorruptData"),
        "hash-frame": (_signed(small, other_hash), "CorruptData"),
        "hash-plain": (_signed(plain, other_hash), "CorruptData"),
        "hash-empty": (_signed(empty, other_hash), "CorruptData"),
        "base-none": (compress_file(_small(), "fast", alone=False, base=old, base_name="old"), "BaseMismatch"),
    }
    return [_refused(f"file-{name}.safetensors", {"": data}, error, "tensors") for name, (data, error) in cases.items()]


def _invalid_originals() -> list[Golden]:
    small = read_container(compress_file(_small(), "fast", alone=True))
    other = read_container(write_container([Tensor("b", "U8", (1,), b"b")], {})).header
    cases = {
        "header-text": {"original_header": "%%%"},
        "header-names": {"original_header": pack(other)},
        "sha256": {"original_sha256": "0" * 64},
    }
    return [
        _refused(f"original-{name}.safetensors", {"": _signed(small, ours)}, "CorruptData", "original")
        for name, ours in cases.items()
    ]


def _invalid_beside() -> list[Golden]:
    """What a tensor is relative to is not there, or another one."""
    first, second = "first.safetensors", "second.safetensors"
    small = {first: _small(), second: _small()}
    files = compress_directory(small, "fast", beside={second: {"a.w": (first, "a.w")}})
    other = write_container([Tensor("a.w", "BF16", (1024,), b"\x81\x3f" * 1024)], {})
    cases = {
        "file": ({second: _signed(read_container(files[second]), {"beside:a.w": "third.safetensors"})}, "BaseMismatch"),
        "tensor": ({second: _signed(read_container(files[second]), {"base:a.w": "b.w"})}, "BaseMismatch"),
        "path": ({second: _signed(read_container(files[second]), {"beside:a.w": f"../{first}"})}, "CorruptData"),
        "hash": (compress_directory({**small, first: other}, "fast") | {second: files[second]}, "BaseMismatch"),
    }
    return [
        _refused(f"beside-{name}", {**files, **changed}, error, "original") for name, (changed, error) in cases.items()
    ]


def _invalid_indexes() -> list[Golden]:
    original = {"metadata": {}, "weight_map": {"a.w": SHARDS[0]}}
    files = compress_directory({SHARDS[0]: _small(), INDEX: dump(original)}, "fast")
    index = json.loads(files[INDEX])
    name = payload_name("a.w")
    cases = {
        "required": ({"metadata": {f"{PREFIX}required": NEW}}, "UnsupportedVersion"),
        "required-list": ({"metadata": {f"{PREFIX}required": [NEW]}}, "CorruptData"),
        "required-null": ({"metadata": {f"{PREFIX}required": None}}, "CorruptData"),
        "weight-map": ({"weight_map": [SHARDS[0]]}, "CorruptData"),
        "path": ({"weight_map": {name: f"../{SHARDS[0]}"}}, "CorruptData"),
    }
    return [
        _refused(f"index-{case}", {SHARDS[0]: files[SHARDS[0]], INDEX: dump({**index, **change})}, error, "tensors")
        for case, (change, error) in cases.items()
    ]


def _small_directory() -> dict[str, bytes]:
    return compress_directory({"config.json": b"{}", "model.safetensors": _small()}, "fast")


def _invalid_configs() -> list[Golden]:
    config = json.loads(_small_directory()["config.json"])
    cases = {
        "required": ({"required": NEW}, "UnsupportedVersion"),
        "required-list": ({"required": []}, "CorruptData"),
        "required-null": ({"required": None}, "CorruptData"),
        "version": ({"version": 2}, "UnsupportedVersion"),
        "version-true": ({"version": True}, "UnsupportedVersion"),
    }
    found = []
    for name, (change, error) in cases.items():
        changed = {**config, "quantization_config": {**config["quantization_config"], **change}}
        found.append(_refused(f"config-{name}.json", {"": dump(changed)}, error, "config"))
    return found


def _invalid_manifests() -> list[Golden]:
    cases: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
        "required": (lambda m: m.update(required=NEW), "UnsupportedVersion"),
        "required-list": (lambda m: m.update(required=[]), "CorruptData"),
        "required-null": (lambda m: m.update(required=None), "CorruptData"),
        "version": (lambda m: m.update(version=2), "UnsupportedVersion"),
        "version-of-a-fraction": (lambda m: m.update(version=1.0), "UnsupportedVersion"),
        "version-true": (lambda m: m.update(version=True), "UnsupportedVersion"),
        "format": (lambda m: m.update(format="later"), "CorruptData"),
        "profile": (lambda m: m.pop("profile"), "CorruptData"),
        "kind": (lambda m: m["files"][0].update(kind="later"), "CorruptData"),
        "member": (lambda m: m["files"][0].pop("stored_sha256"), "CorruptData"),
        "path": (lambda m: m["files"][0].update(path="../config.json"), "CorruptData"),
        "path-twice": (lambda m: m["files"].append(m["files"][0]), "CorruptData"),
        "path-own": (lambda m: m["files"][0].update(path="tensorwire.json"), "CorruptData"),
        "nbytes": (lambda m: m["files"][0].update(nbytes=-1), "CorruptData"),
        "path-surrogate": (lambda m: m["files"][0].update(path="\ud800"), "CorruptData"),
        "sha256": (lambda m: m["files"][0].update(sha256="0" * 63), "CorruptData"),
        "stored-sha256": (lambda m: m["files"][0].update(stored_sha256="../config.json"), "CorruptData"),
        "excluded-path": (lambda m: m.update(excluded=["../config.json"]), "CorruptData"),
        "excluded-twice": (lambda m: m.update(excluded=["logs", "logs/"]), "CorruptData"),
        "content": (lambda m: m["files"][0].update(content=pack(b"[]")), "CorruptData"),
        "header": (lambda m: m["files"][1].update(header=pack(b"{}")), "CorruptData"),
        "base": (lambda m: m.update(base={"name": "old"}), "CorruptData"),
        "directories": (lambda m: m.update(directories=["no_slash"]), "CorruptData"),
    }
    found = []
    for name, (change, error) in cases.items():
        files = _small_directory()
        manifest = json.loads(files["tensorwire.json"])
        change(manifest)
        files["tensorwire.json"] = signed_manifest(manifest)
        found.append(_refused(f"manifest-{name}", files, error, "original"))
    files = _small_directory()
    wrong = {**json.loads(files["tensorwire.json"]), "checksum": "0" * 64}
    found.append(_refused("manifest-checksum", {**files, "tensorwire.json": dump(wrong)}, "CorruptData", "original"))
    twice = files["tensorwire.json"].replace(b'"version": 1', b'"version": 1,\n "version": 1', 1)
    found.append(_refused("manifest-twice", {**files, "tensorwire.json": twice}, "CorruptData", "original"))
    return found


if __name__ == "__main__":
    main()
