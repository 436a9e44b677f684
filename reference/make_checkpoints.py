"""Write the golden files and directories of docs/checkpoints.md, version 1, from the root of the repository:
`PYTHONPATH=. python -m reference.make_checkpoints`.

See tests/golden/README.md for what they are, and when this is allowed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from reference.checkpoint_originals import (
    BESIDE,
    INDEX,
    SHARDS,
    STORAGES,
    files_beside,
    model_tensors,
    old_directory,
    old_file,
    original_directory,
    original_file,
    small_file,
    torch_file,
)
from reference.tensorwire_reference.checkpoint import (
    MARKER,
    PREFIX,
    identity,
    pack,
    payload_name,
    sha256,
)
from reference.tensorwire_reference.checkpoint_writer import (
    compress_directory,
    compress_file,
    compress_torch,
    dump,
    frames_file,
    sign,
    signed_manifest,
    torch_parts,
    write_container,
)
from reference.tensorwire_reference.containers import Container, Tensor, read_container

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "checkpoints" / "v1"
MAX_TOTAL_NBYTES = 250_000
NEW = "later features"
"""Two features that version 1 does not have."""


class Golden(NamedTuple):
    """A file ("" is its only path), or a directory, and what the list says of it."""

    path: str
    files: dict[str, bytes]
    entry: dict[str, Any]

    def based_on(self, base: str | list[str]) -> "Golden":
        return self._replace(entry={**self.entry, "base": base})


def main() -> None:
    valid, invalid = _valid(), _invalid()
    files = {"bases/old.safetensors": old_file(), "bases/small.safetensors": small_file()}
    files |= {f"bases/directory/{path}": data for path, data in old_directory().items()}
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


# What is read ---------------------------------------------------------------------------------------------------------


def _valid() -> list[Golden]:
    original, directory, tensors = original_file(), original_directory(), model_tensors()
    old = read_container(old_file()).tensors
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
            "beside", compress_directory(files_beside(), "fast", beside=BESIDE), _all(files_beside()), files_beside()
        ),
        _whole("directory-optional", _with_optional(compress_directory(directory, "fast")), tensors, directory),
        *_valid_torch_files(),
        *_valid_deltas(),
        *_valid_directories(),
    ]


def _valid_torch_files() -> list[Golden]:
    original = torch_file()
    _, storages = torch_parts(original, STORAGES)
    files = {"model.safetensors": small_file(), "optimizer.pt": original}
    return [
        _file("torch", compress_torch(original, STORAGES, "fast", alone=True), storages, original),
        _whole(
            "torch-directory",
            compress_directory(files, "fast", storages={"optimizer.pt": STORAGES}),
            read_container(small_file()).tensors,
            files,
        ),
    ]


def _valid_deltas() -> list[Golden]:
    old = read_container(old_file()).tensors
    delta = read_container(compress_file(original_file(), "fast", alone=True, base=old, base_name="old"))
    newer = [tensor._replace(data=tensor.data[:-4] + b"\x03\x3f\x04\x3f") for tensor in model_tensors()]
    original = write_container(newer, {})
    again = compress_file(original, "fast", alone=True, base=model_tensors(), base_name="delta.safetensors")
    bases = ["valid/delta.safetensors", "bases/old.safetensors"]
    # Keys of a feature that the file does not name count for nothing.
    keys = {"path": "x.safetensors", "beside:head": "y.safetensors", "original_torch": "none"}
    directory = {"config.json": b'{"model_type": "llama", "dtype": "bfloat16"}', "model.safetensors": small_file()}
    files = old_directory()
    of_base = read_container(files["model.safetensors"]).tensors
    packed = compress_directory(directory, "fast", base=of_base, base_name="directory")
    manifest = json.loads(packed["tensorwire.json"])
    manifest["files"][0]["base_sha256"] = sha256(files["config.json"])
    packed["tensorwire.json"] = signed_manifest(manifest)
    carried = _carried(16)
    return [
        _file("delta-of-delta", again, newer, original).based_on(bases),
        _file("delta-without-beside", _signed(delta, keys), model_tensors(), original_file(), True),
        _file("delta-sixteen", *carried).based_on("bases/small.safetensors"),
        _whole("delta-directory", packed, read_container(small_file()).tensors, directory).based_on("bases/directory"),
    ]


def _carried(count: int) -> tuple[bytes, list[Tensor], bytes]:
    """A delta of so many tensors, all relative to the one tensor of a base: its bytes, its tensors, its original."""
    (base,) = read_container(small_file()).tensors
    tensors = [base._replace(name=f"w{number}") for number in range(count)]
    original = write_container(tensors, {})
    found = read_container(compress_file(original, "fast", alone=True, base=tensors, base_name="small.safetensors"))
    names = {f"base:{tensor.name}": base.name for tensor in tensors}
    return _signed(found, {**names, "base_hash": identity([base])}), tensors, original


def _valid_directories() -> list[Golden]:
    """A chain of checkpoints, and a directory whose config.json names the file of weights."""
    steps = {f"step-{step}/model.safetensors": small_file() for step in (1, 2)}
    first, second = steps
    chain = compress_directory(steps, "fast", beside={second: {"a.w": (first, "a.w")}})
    chain["tensorwire.json"] = signed_manifest({**json.loads(chain["tensorwire.json"]), "chain": True})
    other = write_container([Tensor("a.w", "BF16", (1024,), b"\x81\x3f" * 1024)], {})
    config = dump({"transformers_weights": "main.safetensors"})
    named = {"config.json": config, "main.safetensors": small_file(), "model.safetensors": other}
    golden = _whole("chain", chain, [], steps)
    return [
        golden._replace(entry={**golden.entry, "tensors": None}),
        _whole("named-weights", compress_directory(named, "fast"), read_container(small_file()).tensors, named),
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
    found = read_container(frames_file(small_file(), "fast"))
    return write_container([*found.tensors, pairs], {**found.metadata, f"{PREFIX}later": "skip me"}), [
        *read_container(small_file()).tensors,
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
    found = read_container(compress_file(small_file(), "fast", alone=False))
    return _signed(found._replace(tensors=[*found.tensors, *alike]), {}), [
        *read_container(small_file()).tensors,
        *alike,
    ]


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
    small = read_container(compress_file(small_file(), "fast", alone=False))
    marker, payload = small.tensors
    frames = read_container(frames_file(small_file(), "fast"))
    plain = read_container(compress_file(write_container(model_tensors()[1:3], {}), "fast", alone=False))
    nothing = write_container([Tensor("scales", "F32", (0, 4), b"")], {})
    empty = read_container(compress_file(nothing, "fast", alone=False))
    other_hash = {f"hash:{name}": "0" * 32 for name in ("a.w", "scales")}
    unsigned = {key: text for key, text in small.metadata.items() if key != f"{PREFIX}checksum"}
    wrong = {**small.metadata, f"{PREFIX}checksum": "0" * 32}
    unversioned = small._replace(metadata={f"{PREFIX}profile": "fast"})
    old = [tensor._replace(data=bytes(2048)) for tensor in read_container(small_file()).tensors]

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
        "beside-no-path": (_signed(small, {"required": "beside"}), "CorruptData"),
        "base-none": (compress_file(small_file(), "fast", alone=False, base=old, base_name="old"), "BaseMismatch"),
    }
    return [_refused(f"file-{name}.safetensors", {"": data}, error, "tensors") for name, (data, error) in cases.items()]


def _invalid_originals() -> list[Golden]:
    small = read_container(compress_file(small_file(), "fast", alone=True))
    other = read_container(write_container([Tensor("b", "U8", (1,), b"b")], {})).header
    cases = {
        "header-text": {"original_header": "%%%"},
        "header-names": {"original_header": pack(other)},
        "sha256": {"original_sha256": "0" * 64},
    }
    record, _ = torch_parts(torch_file(), STORAGES)
    of_torch = read_container(compress_torch(torch_file(), STORAGES, "fast", alone=True))
    longer = _signed(of_torch, {"original_torch": pack(record + b"x")})
    beyond = _refused("original-delta-seventeen.safetensors", {"": _carried(17)[0]}, "LimitExceeded", "original")
    return [
        *(
            _refused(f"original-{name}.safetensors", {"": _signed(small, ours)}, "CorruptData", "original")
            for name, ours in cases.items()
        ),
        _refused("original-torch-sizes.safetensors", {"": longer}, "CorruptData", "original"),
        beyond.based_on("bases/small.safetensors"),
    ]


def _invalid_beside() -> list[Golden]:
    """What a tensor is relative to is not there, or another one."""
    first, second = "first.safetensors", "second.safetensors"
    small = {first: small_file(), second: small_file()}
    files = compress_directory(small, "fast", beside={second: {"a.w": (first, "a.w")}})
    other = write_container([Tensor("a.w", "BF16", (1024,), b"\x81\x3f" * 1024)], {})
    cases = {
        "file": ({second: _signed(read_container(files[second]), {"beside:a.w": "third.safetensors"})}, "BaseMismatch"),
        "tensor": ({second: _signed(read_container(files[second]), {"base:a.w": "b.w"})}, "BaseMismatch"),
        "path": ({second: _signed(read_container(files[second]), {"beside:a.w": f"../{first}"})}, "CorruptData"),
        "hash": (compress_directory({**small, first: other}, "fast") | {second: files[second]}, "BaseMismatch"),
    }
    (tensor,) = read_container(small_file()).tensors
    many = {
        first: small_file(),
        second: write_container([tensor._replace(name=f"w{number}") for number in range(17)], {}),
    }
    circle = {first: {"a.w": (second, "a.w")}, second: {"a.w": (first, "a.w")}}
    seventeen = {second: {f"w{number}": (first, "a.w") for number in range(17)}}
    return [
        *(
            _refused(f"beside-{name}", {**files, **changed}, error, "original")
            for name, (changed, error) in cases.items()
        ),
        _refused("beside-circle", compress_directory(small, "fast", beside=circle), "CorruptData", "original"),
        _refused("beside-seventeen", compress_directory(many, "fast", beside=seventeen), "LimitExceeded", "original"),
    ]


def _invalid_indexes() -> list[Golden]:
    original = {"metadata": {}, "weight_map": {"a.w": SHARDS[0]}}
    files = compress_directory({SHARDS[0]: small_file(), INDEX: dump(original)}, "fast")
    index = json.loads(files[INDEX])
    name = payload_name("a.w")
    cases = {
        "required": ({"metadata": {f"{PREFIX}required": NEW}}, "UnsupportedVersion"),
        "required-list": ({"metadata": {f"{PREFIX}required": [NEW]}}, "CorruptData"),
        "required-null": ({"metadata": {f"{PREFIX}required": None}}, "CorruptData"),
        "beside": ({"metadata": {f"{PREFIX}required": "beside"}}, "UnsupportedVersion"),
        "weight-map": ({"weight_map": [SHARDS[0]]}, "CorruptData"),
        "path": ({"weight_map": {name: f"../{SHARDS[0]}"}}, "CorruptData"),
    }
    return [
        _refused(f"index-{case}", {SHARDS[0]: files[SHARDS[0]], INDEX: dump({**index, **change})}, error, "tensors")
        for case, (change, error) in cases.items()
    ]


def _small_directory() -> dict[str, bytes]:
    return compress_directory({"config.json": b"{}", "model.safetensors": small_file()}, "fast")


def _invalid_configs() -> list[Golden]:
    config = json.loads(_small_directory()["config.json"])
    cases = {
        "required": ({"required": NEW}, "UnsupportedVersion"),
        "required-list": ({"required": []}, "CorruptData"),
        "required-null": ({"required": None}, "CorruptData"),
        "torch": ({"required": "torch"}, "UnsupportedVersion"),
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
        "path-directory": (
            lambda m: m["files"].append({**m["files"][0], "path": "config.json/x"}),
            "CorruptData",
        ),
        "version-none": (lambda m: m.pop("version"), "UnsupportedVersion"),
        "excluded-none": (lambda m: m.pop("excluded"), "CorruptData"),
        "sha256-upper": (lambda m: m["files"][0].update(sha256=m["files"][0]["sha256"].upper()), "CorruptData"),
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
