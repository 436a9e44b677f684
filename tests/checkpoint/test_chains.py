"""A base that is a delta itself, with its own base behind it: every operation reads through the chain, and says which
link is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire import BaseMismatchError, LimitExceededError, checkpoint
from tensorwire.codec import content_hash
from tensorwire.files import base as base_module
from tensorwire.files.base import MAX_RELATIVE, BaseTensor
from tests.support.acting import acting, interrupt
from tests.support.checkpoint_models import container, tree_hashes, weights, write_model
from tests.support.deltas import FIRST, SECOND, step, write_next
from tests.support.processes import PRINT_PEAK_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.checkpoint_models import Entry

UP = "model.layers.0.mlp.up_proj.weight"
OTHER = "model.layers.0.other.weight"
INDEX = "model.safetensors.index.json"
PROFILES: tuple[Any, ...] = ("compact", "fast", "enec")


class Versions:
    """Plain models 0 to 3, and of each from 1 on the delta from the one before it, under the same name elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def plain(self, number: int) -> Path:
        return self.root / "plain" / str(number)

    def delta(self, number: int) -> Path:
        return self.root / "deltas" / str(number)

    def chain(self, newest: int) -> list[Path]:
        return [*(self.delta(number) for number in range(newest, 0, -1)), self.plain(0)]


def rewrite(old: Path, new: Path, change: Callable[[Entry], Entry]) -> None:
    """A newer model: the first shard's tensors changed, all else the same."""
    shutil.copytree(old, new)
    (new / INDEX).unlink(missing_ok=True)  # which would be wrong
    (new / FIRST).write_bytes(container([change(entry) for entry in entries_of(old / FIRST)]))


def entries_of(path: Path) -> list[Entry]:
    with checkpoint.open_file(path, framework="bytes") as file:
        slices = {name: file.get_slice(name) for name in file.offset_keys()}
        return [(name, s.get_dtype(), tuple(s.get_shape()), file.get_tensor(name)) for name, s in slices.items()]


def rename(entry: Entry) -> Entry:
    name, dtype, shape, data = entry
    return (OTHER, dtype, shape[::-1], data) if name == UP else entry


def train(entry: Entry) -> Entry:
    name, dtype, shape, data = entry
    return (name, dtype, shape, step(data, 33)) if name == OTHER else entry


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """Version 1 changes a tensor, version 2 gives it another name and shape, version 3 changes it again."""
    found = Versions(tmp_path_factory.mktemp("versions"))
    (found.root / "plain").mkdir()
    (found.root / "deltas").mkdir()
    write_model(found.plain(0))
    write_next(found.plain(0), found.plain(1))
    rewrite(found.plain(1), found.plain(2), rename)
    rewrite(found.plain(2), found.plain(3), train)
    for number, profile in enumerate(PROFILES, 1):
        base = found.plain(number - 1)
        checkpoint.compress_checkpoint(found.plain(number), found.delta(number), base=base, profile=profile)
    return found


def same_tensors(found: dict[str, bytes], path: Path) -> bool:
    return found == checkpoint.load_file(path, framework="bytes")


def packed(versions: Versions, tmp_path: Path) -> Path:
    checkpoint.compress_checkpoint(versions.plain(0), tmp_path / "0")
    return tmp_path / "0"


# What reads through a chain -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [1, 2])
@pytest.mark.parametrize("form", ["plain", "packed", "index"])
def test_every_file_comes_back(versions: Versions, tmp_path: Path, newest: int, form: str) -> None:
    chain = versions.chain(newest)
    if form == "packed":
        chain[-1] = packed(versions, tmp_path)
    if form == "index":  # which names the first two files alone
        shutil.copytree(versions.plain(0), tmp_path / "i")
        chain[-1] = tmp_path / "i" / INDEX
        shutil.rmtree(tmp_path / "i" / "vae")
        with pytest.raises(BaseMismatchError, match=r"has no tensor of this name.*vae"):
            checkpoint.decompress_checkpoint(versions.delta(newest + 1), tmp_path / "back", base=chain)
        with checkpoint.open_file(versions.delta(newest + 1), base=chain, framework="bytes") as file:
            assert same_tensors(file.get_tensors(), versions.plain(newest + 1))
        return
    checkpoint.decompress_checkpoint(versions.delta(newest + 1), tmp_path / "back", base=chain)
    assert tree_hashes(tmp_path / "back") == tree_hashes(versions.plain(newest + 1))


def test_every_operation_takes_a_chain(versions: Versions, tmp_path: Path) -> None:
    chain, delta, plain = versions.chain(2), versions.delta(3), versions.plain(3)
    report = checkpoint.verify(delta, base=chain)
    assert (report.ok, report.exact, report.num_unchecked, report.base) == (True, True, 0, str(chain[0]))
    inspected = checkpoint.inspect(delta, base=chain)
    assert {tensor.base_found for tensor in inspected.tensors if tensor.base_hash} == {True}
    assert inspected.recorded_base is not None
    assert (inspected.recorded_base.name, inspected.recorded_base.found) == ("2", True)
    tensors = {tensor.name: tensor for tensor in inspected.tensors}
    expected = {tensor.name: tensor.exponent_counts for tensor in checkpoint.inspect(plain).tensors}
    assert {name: tensor.exponent_counts for name, tensor in tensors.items()} == expected
    assert checkpoint.diff(plain, delta, base=chain).equal
    assert not checkpoint.diff(versions.delta(2), delta, base=chain).equal
    checkpoint.transcode_checkpoint(delta, tmp_path / "a", profile="fast", base=chain)
    checkpoint.compress_checkpoint(plain, tmp_path / "b", profile="fast", base=versions.plain(2))
    assert tree_hashes(tmp_path / "a") == tree_hashes(tmp_path / "b")


def test_what_is_compressed_is_what_the_plain_base_gives(versions: Versions, tmp_path: Path) -> None:
    """The newest one is the base: tensors are relative to its tensors, whatever it is relative to itself."""
    checkpoint.compress_checkpoint(versions.plain(3), tmp_path / "a", base=versions.chain(2))
    checkpoint.compress_checkpoint(versions.plain(3), tmp_path / "b", base=versions.plain(2))
    assert tree_hashes(tmp_path / "a") == tree_hashes(tmp_path / "b")


@pytest.mark.parametrize("verify", [True, False])
def test_tensors_and_slices(versions: Versions, verify: bool) -> None:
    plain = versions.plain(3) / FIRST
    with (
        checkpoint.open_file(versions.delta(3) / FIRST, base=versions.chain(2), verify=verify) as file,
        checkpoint.open_file(plain) as original,
    ):
        assert file.keys() == original.keys()
        for name in original:
            for index in (slice(1, 2), slice(40, 90), -1):
                assert file.get_slice(name)[index].tobytes() == original.get_slice(name)[index].tobytes()
            assert file.get_tensor(name).tobytes() == original.get_tensor(name).tobytes()


def test_bases_of_bases_are_always_checked(versions: Versions, tmp_path: Path) -> None:
    """Without `verify` too, where the size of the base is enough. Version 1 has the same sizes as version 0."""
    chain = [versions.delta(2), versions.delta(1), versions.plain(1)]
    with (
        checkpoint.open_file(versions.delta(3) / FIRST, base=chain, verify=False) as file,
        pytest.raises(BaseMismatchError, match="was applied already") as caught,
    ):
        file.get_tensor(OTHER)
    assert caught.value.file == versions.delta(1) / FIRST


def test_arrays_stand_in_last_place(versions: Versions) -> None:
    arrays = checkpoint.load_file(versions.plain(0))
    found = checkpoint.load_file(versions.delta(3), base=[versions.delta(2), versions.delta(1), arrays])
    assert same_tensors({name: array.tobytes() for name, array in found.items()}, versions.plain(3))


def test_a_delta_of_some_tensors(tmp_path: Path) -> None:
    """What a delta does not hold is looked for behind it: a publisher leaves out what has not changed."""
    old = {name: np.frombuffer(weights(5000, seed), np.uint16) for seed, name in enumerate("ab")}
    second = {"a": old["a"] ^ 1}
    third = {"a": second["a"] ^ 2, "b": old["b"] ^ 4}
    paths = [tmp_path / name for name in ("0", "1", "2")]
    checkpoint.save_file(old, paths[0])
    checkpoint.save_file(second, paths[1], base=paths[0])
    checkpoint.save_file(third, paths[2], base={**old, **second})
    found = checkpoint.load_file(paths[2], base=[paths[1], paths[0]])
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in third.items()}


def test_memory_does_not_grow_with_the_chain(tmp_path: Path) -> None:
    """Each delta has blocks of other rows, so that no range of one is a range of whole blocks of the next."""
    shapes = ((2400, 1500), (2000, 1800))
    data = weights(2400 * 1500, 1)
    for number in range(9):
        new = tmp_path / f"new{number}"
        new.write_bytes(container([("w", "BF16", shapes[number % 2], data)]))
        if number:
            checkpoint.compress_checkpoint(new, tmp_path / f"{number}", base=tmp_path / f"new{number - 1}")
        data = step(data, number)
    peaks = []
    for newest in (2, 8):
        chain = [str(tmp_path / str(number)) for number in range(newest, 0, -1)] + [str(tmp_path / "new0")]
        program = (
            "from tensorwire import checkpoint\n"
            f"checkpoint.decompress_checkpoint({chain[0]!r}, {str(tmp_path / 'out')!r}, base={chain[1:]}, force=True)"
        )
        run = subprocess.run(
            [sys.executable, "-c", program + PRINT_PEAK_MEMORY],
            capture_output=True,
            text=True,
            check=True,
        )
        assert (tmp_path / "out").read_bytes() == (tmp_path / f"new{newest}").read_bytes()
        peaks.append(int(run.stdout))
    assert peaks[1] - peaks[0] < 2 * 2400 * 1500 * 2, "more than two copies of the tensor for six links more"


# Chains that are not whole ------------------------------------------------------------------------------------------


def failing(versions: Versions, chain: Any, tmp_path: Path, kind: type[Exception]) -> Any:
    """The error, which is the same whatever reads; nothing is made."""
    for name, source in (("decompress", versions.delta(3)), ("compress", versions.plain(3))):
        make: Any = getattr(checkpoint, f"{name}_checkpoint")
        with pytest.raises(kind) as caught:
            make(source, tmp_path / "x", base=chain)
        assert not list(tmp_path.glob("x*"))
    with pytest.raises(kind):
        checkpoint.load_file(versions.delta(3), base=chain)
    return caught.value


def test_a_link_is_missing(versions: Versions, tmp_path: Path) -> None:
    """The error is about the delta that lacks its base, and says where it was looked for."""
    chain = [versions.delta(2), versions.plain(0)]
    error = failing(versions, chain, tmp_path, BaseMismatchError)
    needed = content_hash(checkpoint.load_file(versions.plain(1), framework="bytes")[UP])
    assert (error.file, error.tensor) == (versions.delta(2) / FIRST, OTHER)
    assert f"expected a base {UP!r} of 36864 bytes with content hash {needed}" in str(error)
    assert f"the one in {str(versions.plain(0) / FIRST)!r} has " in str(error)
    assert "if that is a delta its own base behind it" in str(error)


def test_the_newest_link_is_missing(versions: Versions, tmp_path: Path) -> None:
    with pytest.raises(BaseMismatchError) as caught:
        checkpoint.decompress_checkpoint(versions.delta(3), tmp_path / "x", base=[versions.delta(1), versions.plain(0)])
    assert f"{versions.delta(1)} and {versions.plain(0)} have no tensor of this name" in str(caught.value)
    assert caught.value.advice.endswith("its own base behind it; the base was called '2'")


def test_the_last_link_is_missing(versions: Versions, tmp_path: Path) -> None:
    error = failing(versions, [versions.delta(2), versions.delta(1)], tmp_path, ValueError)
    assert f"{versions.delta(1)} is relative to a base itself; decompress it first, or name its own base" in str(error)


def test_links_out_of_order(versions: Versions, tmp_path: Path) -> None:
    one, two, base = versions.delta(1), versions.delta(2), versions.plain(0)
    with pytest.raises(BaseMismatchError) as caught:
        checkpoint.decompress_checkpoint(versions.delta(3), tmp_path / "x", base=[one, two, base])
    assert (caught.value.file, caught.value.tensor) == (two / FIRST, OTHER)
    assert "are out of order: name the newest first" in caught.value.advice
    assert "is relative to a base itself" in str(failing(versions, [base, one, two], tmp_path, ValueError))
    error = failing(versions, [two, base, one], tmp_path, ValueError)
    assert "is relative to a base itself" in str(error)


def test_a_link_too_many(versions: Versions, tmp_path: Path) -> None:
    chain = [*versions.chain(2), versions.plain(1)]
    error = failing(versions, chain, tmp_path, ValueError)
    assert f"{versions.plain(0)} is relative to nothing, so what stands behind it is not needed" in str(error)


def test_a_link_that_is_there_twice(versions: Versions, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(versions.delta(2))
    for first in (versions.delta(2), tmp_path / "link"):
        error = failing(versions, [first, *versions.chain(2)], tmp_path, ValueError)
        assert f"{first} is there twice" in str(error)


@pytest.mark.parametrize("num_links", [0, 101])
def test_the_number_of_links(versions: Versions, tmp_path: Path, num_links: int) -> None:
    error = failing(versions, [versions.plain(0)] * num_links, tmp_path, ValueError)
    assert f"expected a base of 1 to 100 checkpoints, newest first, got {num_links}" in str(error)


def test_the_longest_chain_is_read(tmp_path: Path) -> None:
    """A tensor is decoded by a call inside the next newer one's, which Python bounds."""
    tensors = {"w": np.frombuffer(weights(400, 1), np.uint16)}
    checkpoint.save_file(tensors, tmp_path / "0")
    for number in range(1, 101):
        newer = {"w": tensors["w"] + np.uint16(1)}
        checkpoint.save_file(newer, tmp_path / str(number), base=tensors)
        tensors = newer
    chain = [tmp_path / str(number) for number in range(99, -1, -1)]
    assert checkpoint.load_file(tmp_path / "100", base=chain)["w"].tobytes() == tensors["w"].tobytes()


def test_where_arrays_may_stand(versions: Versions, tmp_path: Path) -> None:
    arrays = {"w": np.zeros(3)}
    for call in (
        lambda: checkpoint.load_file(versions.delta(1), base=[arrays, versions.plain(0)]),
        lambda: checkpoint.load_file(versions.delta(1), base=5),  # type: ignore[arg-type]
        lambda: checkpoint.verify(versions.delta(1), base=arrays),  # type: ignore[arg-type]
        lambda: checkpoint.compress_checkpoint(versions.plain(1), tmp_path / "x", base=arrays),  # type: ignore[arg-type]
        lambda: checkpoint.apply_checkpoint(versions.delta(1), versions.chain(1)),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"^expected "):
            call()
    assert not list(tmp_path.iterdir())


def test_verify_tells_of_each_tensor(versions: Versions) -> None:
    report = checkpoint.verify(versions.delta(3), base=[versions.delta(2), versions.plain(0)])
    assert {problem.kind for problem in report.problems} == {"BaseMismatchError"}
    assert OTHER in {problem.tensor for problem in report.problems}
    unchanged = checkpoint.inspect(versions.delta(3), base=[versions.delta(2), versions.plain(0)])
    assert {tensor.base_found for tensor in unchanged.tensors if tensor.base_hash} == {True, False}


def test_results_stay_apart_from_every_link(versions: Versions, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(versions.root, root)
    copy = Versions(root)
    before = tree_hashes(root)
    for number in (1, 2):
        for place in (copy.delta(number), copy.delta(number) / "x", copy.plain(0) / "x"):
            with pytest.raises(ValueError, match=r"is the base, or a file of it|lie in each other"):
                checkpoint.decompress_checkpoint(copy.delta(3), place, base=copy.chain(2), force=True)
    with pytest.raises(ValueError, match="the result could not be restored without the source"):
        checkpoint.compress_checkpoint(copy.plain(0), tmp_path / "x", base=copy.chain(2))
    with pytest.raises(ValueError, match="is the base, or a file of it"):
        checkpoint.save_file({"w": np.ones(9)}, copy.delta(1) / FIRST, base=copy.chain(2))
    assert tree_hashes(root) == before


# What a chain may claim, and what changes meanwhile -----------------------------------------------------------------

OLD = np.random.default_rng(1).integers(0, 2**16, 2**13, np.uint16)


def test_a_chain_claims_no_more_than_its_last_link_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each link could claim 16 times what the one behind it does."""
    checkpoint.save_file({"w": OLD}, tmp_path / "0")
    names = [f"t{index}" for index in range(MAX_RELATIVE)]
    checkpoint.save_file(dict.fromkeys(names, OLD), tmp_path / "1", base=tmp_path / "0")
    more = [f"u{index}" for index in range(MAX_RELATIVE + 1)]
    chain = [tmp_path / "1", tmp_path / "0"]
    checkpoint.save_file(dict.fromkeys(more, OLD), tmp_path / "2", base=chain)
    relative = [tensor for tensor in checkpoint.inspect(tmp_path / "2").tensors if tensor.base_hash is not None]
    assert len(relative) == MAX_RELATIVE
    assert all(array.tobytes() == OLD.tobytes() for array in checkpoint.load_file(tmp_path / "2", base=chain).values())
    with monkeypatch.context() as patch:
        patch.setattr(base_module, "MAX_RELATIVE", 10**6)
        checkpoint.save_file(dict.fromkeys(more, OLD), tmp_path / "2", base=chain)
    expected = f"at most 16 times the {OLD.nbytes} bytes of the base, got {17 * OLD.nbytes} bytes or more"
    with pytest.raises(LimitExceededError, match=expected):
        checkpoint.load_file(tmp_path / "2", base=chain)


def test_the_last_link_is_written_over_between_slices(versions: Versions, tmp_path: Path) -> None:
    shutil.copytree(versions.plain(0), tmp_path / "0")
    chain = [versions.delta(2), versions.delta(1), tmp_path / "0"]
    with checkpoint.open_file(versions.delta(3) / FIRST, base=chain, framework="bytes") as file:
        part = file.get_slice(OTHER)
        part[0:4]
        (tmp_path / "0" / FIRST).write_bytes((versions.plain(1) / FIRST).read_bytes())
        with pytest.raises(OSError, match=r"the file changed while it was read.*/0/"):
            part[0:4]


def test_the_last_link_changes_while_a_tensor_is_compressed(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that is relative to what a chain gave for a moment could not be decompressed."""
    shutil.copytree(versions.plain(0), tmp_path / "0")
    place = tmp_path / "0" / FIRST

    def torn(own: BaseTensor, start: int, out: memoryview, **_: Any) -> None:
        if own.stored.path == place and own.name == UP and start == 0:
            data = bytearray(place.read_bytes())
            data[data.index(bytes(entries_of(versions.plain(0) / FIRST)[0][3][:64]))] ^= 1
            place.write_bytes(data)

    chain = [versions.delta(2), versions.delta(1), tmp_path / "0"]
    with monkeypatch.context() as patch:
        acting(patch, BaseTensor, "read", torn)
        report = checkpoint.compress_checkpoint(versions.plain(3), tmp_path / "x", base=chain)
    assert [
        notice
        for notice in report.notices
        if f"stored without a base, which changed while it was read: '{OTHER}'" in notice
    ]
    checkpoint.decompress_checkpoint(tmp_path / "x", tmp_path / "back", base=versions.chain(2))
    assert tree_hashes(tmp_path / "back") == tree_hashes(versions.plain(3))


def test_a_run_goes_on_only_with_the_same_chain(versions: Versions, tmp_path: Path) -> None:
    checkpoint.decompress_checkpoint(versions.delta(1), tmp_path / "1", base=versions.plain(0))
    for chain, resumed in ((versions.chain(2), True), ([versions.delta(2), tmp_path / "1"], False)):
        interrupt(checkpoint.compress_checkpoint, versions.plain(3), tmp_path / "x", base=versions.chain(2), at=SECOND)
        report = checkpoint.compress_checkpoint(versions.plain(3), tmp_path / "x", base=chain)
        assert any(file.resumed for file in report.files) == resumed
        shutil.rmtree(tmp_path / "x")
