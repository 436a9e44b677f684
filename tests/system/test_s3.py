"""Checkpoints in S3, as s3fs reaches it. The server is moto's, a stand-in for Amazon's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tensorwire import compress_checkpoint, load_file, open_file, save_file, verify
from tensorwire.cli import main
from tensorwire.sync import Follower, Publisher
from tests.support.acting import raising
from tests.support.checkpoint_models import tree_hashes
from tests.support.s3 import SECRET, running

pytest.importorskip("moto", reason="moto's server is missing: make test installs it")
s3fs = pytest.importorskip("s3fs", reason="s3fs is missing: make test installs it")

pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """What leads to a bucket that is empty."""
    with running() as found:
        yield found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is asked of the server: the operation, and how many bytes of an object."""
    asked: list[tuple[str, int]] = []
    own = s3fs.S3FileSystem._call_s3

    async def call(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        first, _, last = options.get("Range", "bytes=0--1").removeprefix("bytes=").partition("-")
        asked.append((method, int(last) - int(first) + 1))
        return await own(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call)
    return asked


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    random = np.random.default_rng(0)
    rows = random.standard_normal((3, 4096, 1536), dtype=np.float32) * 0.02
    return {f"layers.{index}.weight": each.astype(ml_dtypes.bfloat16) for index, each in enumerate(rows)}


@pytest.fixture(scope="module")
def shard(options: dict[str, Any], weights: dict[str, Any]) -> str:
    """An object that has the weights."""
    save_file(weights, "s3://bucket/a.safetensors", storage_options=options)
    return "s3://bucket/a.safetensors"


def test_a_shard_is_opened_with_two_requests_and_a_slice_takes_one(
    options: dict[str, Any], weights: dict[str, Any], shard: str, requests: list[tuple[str, int]]
) -> None:
    with open_file(shard, storage_options=options) as reader:
        assert [method for method, _ in requests] == ["head_object", "get_object"]
        assert sum(nbytes for _, nbytes in requests) < 8 << 10
        for rows, count in (((100, 101), 2), ((900, 1000), 1), ((4000, 4096), 1)):
            requests.clear()
            found = reader.get_slice("layers.1.weight")[slice(*rows)]
            assert found.tobytes() == weights["layers.1.weight"][slice(*rows)].tobytes()
            assert len(requests) == count
            assert sum(nbytes for _, nbytes in requests) <= found.nbytes + (192 << 10)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_object_that_is_replaced_between_two_slices_is_told(options: dict[str, Any], compressed: bool) -> None:
    """A plain file would give rows of both, and a compressed one would call itself damaged."""
    url, store = f"s3://bucket/replaced-{compressed}.safetensors", s3fs.S3FileSystem(**options)
    objects, first = [], np.random.default_rng(0).standard_normal((4096, 64), dtype=np.float32)
    for number, rows in enumerate((first, -first)):
        if compressed:
            save_file({"w": rows}, f"s3://bucket/{number}.safetensors", storage_options=options)
            objects.append(store.cat_file(f"bucket/{number}.safetensors"))
        else:
            objects.append(safetensors.numpy.save({"w": rows}))
    store.pipe_file(url, objects[0])
    with open_file(url, storage_options=options) as reader:
        assert reader.get_slice("w")[100:200].tobytes() == first[100:200].tobytes()
        store.pipe_file(url, objects[1])
        for call in (lambda: reader.get_slice("w")[3000:3100], lambda: reader.get_tensor("w")):
            with pytest.raises(OSError, match="the object changed while it was read: 's3://bucket/replaced"):
                call()


def test_reads_say_who_pays(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call says it by itself: older versions of s3fs add nothing to calls, and the store then refuses them."""
    save_file({"w": np.arange(9)}, "s3://bucket/paid.safetensors", storage_options=options)
    own, payers = s3fs.S3FileSystem._call_s3, set()

    async def call(self: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        payers.add((method, keywords.get("RequestPayer")))
        return await own(self, method, *arguments, **keywords)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call)
    load_file("s3://bucket/paid.safetensors", storage_options={**options, "requester_pays": True})
    assert ("get_object", "requester") in payers
    assert ("get_object", None) not in payers


def test_a_file_is_loaded_in_few_requests(
    options: dict[str, Any], weights: dict[str, Any], shard: str, requests: list[tuple[str, int]]
) -> None:
    nbytes = s3fs.S3FileSystem(**options).info(shard)["size"]
    requests.clear()
    found = load_file(shard, storage_options=options)
    assert all(found[name].tobytes() == array.tobytes() for name, array in weights.items())
    assert sum(each for _, each in requests) <= 1.01 * nbytes
    assert len(requests) <= -(-nbytes // (8 << 20)) + 2


def test_an_upload_is_exclusive(model: Path, options: dict[str, Any]) -> None:
    """The server refuses the last object if somebody has put one since."""
    compress_checkpoint(model, "s3://bucket/exclusive", storage_options=options)
    store = s3fs.S3FileSystem(**options)
    with pytest.raises(FileExistsError):
        store.put_file(str(model / "config.json"), "bucket/exclusive/tensorwire.json", mode="create")
    assert verify("s3://bucket/exclusive", storage_options=options).ok


def test_a_missing_bucket_is_told_before_the_work(
    model: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = raising(AssertionError("it has begun"))
    monkeypatch.setattr("tensorwire.checkpoint.operations.conversion.Converter.run", work)
    monkeypatch.setattr("tensorwire.checkpoint.tensors.saving.write_with_bases", work)
    text = r"no such bucket; make it first, or name another one: 's3://none'"
    for name in ("s3://none/c", "s3://none"):
        with pytest.raises(FileNotFoundError, match=text):
            compress_checkpoint(model, name, storage_options=options)
    shard = model / "model-00001-of-00002.safetensors"
    with pytest.raises(FileNotFoundError, match=text):
        compress_checkpoint(shard, "s3://none/a.safetensors", storage_options=options)
    with pytest.raises(FileNotFoundError, match=text):
        save_file({"w": np.zeros(4)}, "s3://none/a.safetensors", storage_options=options)
    with pytest.raises(IsADirectoryError, match="is a bucket; name an object in it: 's3://bucket'"):
        save_file({"w": np.zeros(4)}, "s3://bucket", storage_options=options)


def test_an_empty_bucket_takes_a_checkpoint(model: Path, options: dict[str, Any]) -> None:
    s3fs.S3FileSystem(**options).mkdir("whole")
    compress_checkpoint(model, "s3://whole", storage_options=options)
    assert verify("s3://whole", storage_options=options).ok


def test_an_option_that_s3_does_not_know(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"s3://bucket/a: expected storage_options .*'acces'") as caught:
        load_file("s3://bucket/a", storage_options={**options, "client_kwargs": {"acces": "hunter2"}})
    assert "hunter2" not in str(caught.value)


def test_large_objects_go_up_in_parts(
    tmp_path: Path, options: dict[str, Any], requests: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda *arguments, **keywords: 5 << 20)
    random = {"w": np.frombuffer(np.random.default_rng(0).bytes(16 << 20), np.uint8)}
    save_file(random, "s3://bucket/large.safetensors", storage_options=options)
    assert sum(method == "upload_part" for method, _ in requests) >= 4
    assert load_file("s3://bucket/large.safetensors", storage_options=options)["w"].tobytes() == random["w"].tobytes()


@pytest.fixture
def in_environment(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What leads to the bucket stands in the environment alone."""
    names = {"AWS_ACCESS_KEY_ID": options["key"], "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**names, "AWS_ENDPOINT_URL": options["endpoint_url"]}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("in_environment")
def test_the_command_line_says_nothing_secret(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, back = str(model), str(tmp_path / "back")
    for arguments, code in (
        (("compress", here, "s3://bucket/c"), 0),
        (("verify", "s3://bucket/c", "--json"), 0),
        (("inspect", "s3://bucket/c", "--json"), 0),
        (("diff", here, "s3://bucket/c"), 0),
        (("compress", here, "s3://bucket/delta", "--base", "s3://bucket/c"), 0),
        (("decompress", "s3://bucket/c", back), 0),
        (("verify", "s3://bucket/none"), 1),
        (("compress", here, "s3://no-such-bucket/c"), 1),
        (("compress", here, "s3://bucket/c"), 2),
        (("compress", "s3://bucket/c"), 2),
        (("verify", "nothing://bucket/c"), 2),
    ):
        assert main(arguments) == code, arguments
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        assert arguments[0] != "verify" or code or json.loads(out)["path"] == "s3://bucket/c"
    assert tree_hashes(Path(back)) == tree_hashes(model)
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_ranks_publish_one_version(options: dict[str, Any], weights: dict[str, Any]) -> None:
    small = {name: array[:50].copy() for name, array in weights.items()}
    shares = [dict(list(small.items())[rank::2]) for rank in range(2)]
    common: dict[str, Any] = {"num_ranks": 2, "timeout": 60, "threads": 1, "storage_options": options}
    publishers = [Publisher("s3://bucket/ranks", rank=rank, **common) for rank in range(2)]
    held: dict[str, Any] = {}
    follower = Follower("s3://bucket/ranks", held, storage_options=options)
    for number in range(3):
        with ThreadPoolExecutor(2) as pool:
            published = list(
                pool.map(lambda rank, number=number: publishers[rank].publish(shares[rank], number), (0, 1))
            )
        assert {(each.version, each.is_anchor) for each in published} == {(number, number == 0)}
        assert follower.stage() is not None
        follower.commit()
        assert {name: array.tobytes() for name, array in held.items()} == {
            name: array.tobytes() for each in shares for name, array in each.items()
        }
        name = f"layers.{number}.weight"
        changed = shares[number % 2][name].copy()
        changed[:9, :9] = number
        shares[number % 2][name] = changed
