"""When the checksums of weights that stay compressed are checked: once, when a block is first decoded, unless asked."""

from __future__ import annotations

import io
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from tensorwire.codec import FrameReader  # noqa: E402
from tensorwire.files.reader import StoredFile  # noqa: E402
from tensorwire.torch import CompressedTensor, decode_ahead  # noqa: E402
from tests.support.linear_models import WIDTH, chain, inputs, loaded, same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
NUM_LAYERS = 3
BAD = "1.weight"
COMPRESSED: dict[str, Any] = {"framework": "pt", "compressed": True}


@pytest.fixture
def damaged(file: Path) -> Path:
    """The last block of the second weight is wrong."""
    with StoredFile(file) as stored:
        entry, start = stored.tensors[BAD].entry, stored.header.data_start
    data = bytearray(file.read_bytes())
    data[start + entry.start + entry.nbytes - 100] ^= 1
    file.write_bytes(data)
    return file


def weight(path: Path, name: str = BAD, **options: Any) -> Any:
    return tensorwire.load_file(path, **COMPRESSED, **options)[name]


LAST = slice(WIDTH - 1, WIDTH)


def is_refused(w: Any, rows: slice = LAST) -> bool:
    """Whether these rows are in a block whose checksum was found wrong. Without a check anything may come out."""
    try:
        w[rows]
    except tensorwire.CorruptDataError as error:
        return "expected checksum" in str(error)
    return False


def fused(w: Any) -> Any:
    w.set_linear_mode("fused")
    return torch.nn.functional.linear(inputs(), w)


def compiled(w: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda x, w: torch.nn.functional.linear(x, w) + 1, backend="aot_eager")(inputs(), w)


def compiled_rows(w: Any) -> Any:
    torch._dynamo.reset()
    rows = torch.tensor([3, len(w) - 1])
    return torch.compile(lambda rows, w: torch.nn.functional.embedding(rows, w) + 1, backend="aot_eager")(rows, w)


USES: dict[str, Callable[[Any], Any]] = {
    "decoded": lambda w: w.decode(),
    "a row of input": lambda w: torch.nn.functional.linear(inputs(), w),
    "a prompt": lambda w: torch.nn.functional.linear(inputs(40), w),
    "fused": fused,
    "an embedding": lambda w: torch.nn.functional.embedding(torch.tensor([0, len(w) - 1]), w),
    "a slice": lambda w: w[-2:],
    "another operation": lambda w: w + 1,
    "compiled": compiled,
    "a compiled embedding": compiled_rows,
}
SLOW_USES = [("compiled", None), ("a compiled embedding", 0)]


@pytest.mark.parametrize(
    ("use", "resident_nbytes"),
    [
        pytest.param(use, nbytes, id=f"{use}-{place}", marks=pytest.mark.slow if (use, nbytes) in SLOW_USES else ())
        for use in USES
        for nbytes, place in ((None, "in memory"), (0, "in the file"))
    ],
)
def test_damage_is_met_at_the_first_use(damaged: Path, use: str, resident_nbytes: int | None) -> None:
    """And at each one after it. Loading succeeds, and so do uses of what is whole."""
    with torch.no_grad():
        w = weight(damaged, resident_nbytes=resident_nbytes)
        num_blocks = FrameReader(weight(damaged).frame.numpy().tobytes()).info.num_blocks
        assert same(w[:1], chain(num_layers=NUM_LAYERS)[1].weight[:1])
        for _ in range(2):
            with pytest.raises(tensorwire.CorruptDataError, match="expected checksum") as caught:
                USES[use](w)
            assert (str(caught.value.file), caught.value.tensor) == (str(damaged), BAD)
            assert caught.value.block == num_blocks - 1


@pytest.mark.parametrize("resident_nbytes", [None, 0], ids=["in memory", "in the file"])
@pytest.mark.parametrize("ahead", [False, True], ids=["", "decode_ahead"])
def test_the_layer_that_needs_it_meets_it(damaged: Path, ahead: bool, resident_nbytes: int | None) -> None:
    """In the thread that needs it, each time, while all other layers work."""
    model = loaded(damaged, NUM_LAYERS, resident_nbytes=resident_nbytes)
    reference = chain(num_layers=NUM_LAYERS)
    handle = decode_ahead(model) if ahead else None
    for _ in range(3):
        for index in (0, 2):
            assert same(model[index](inputs()), reference[index](inputs()))
        with pytest.raises(tensorwire.CorruptDataError) as caught:
            model[1](inputs())
        assert (caught.value.file, caught.value.tensor) == (str(damaged), BAD)
        assert caught.value.block is not None
    if handle is not None:
        handle.close()


@pytest.mark.parametrize("resident_nbytes", [None, 0], ids=["in memory", "in the file"])
def test_all_blocks_are_checked_while_loading_if_asked(damaged: Path, resident_nbytes: int | None) -> None:
    with pytest.raises(tensorwire.CorruptDataError, match="expected checksum") as caught:
        weight(damaged, "0.weight", verify="load", resident_nbytes=resident_nbytes)
    assert (str(caught.value.file), caught.value.tensor) == (str(damaged), BAD)
    with tensorwire.open_file(damaged, **COMPRESSED, verify="load") as reader:
        assert isinstance(reader.get_tensor("0.weight"), CompressedTensor)
        with pytest.raises(tensorwire.CorruptDataError, match="expected checksum"):
            reader.get_tensor(BAD)


@pytest.mark.parametrize("verify", [False, "load"])
def test_no_checksum_is_looked_at_later(file: Path, verify: Any) -> None:
    w = weight(file, verify=verify)
    w.frame[-100] ^= 1  # of its own pages: the file stays as it is
    assert not is_refused(w)


@pytest.mark.parametrize("verify", ["no", "", 1, None, "Load"])
def test_other_words_are_refused(file: Path, verify: Any) -> None:
    for call in (tensorwire.load_file, tensorwire.open_file):
        with pytest.raises(ValueError, match='True, False or "load"'):
            call(file, verify=verify)


def test_dense_tensors_are_checked_while_loading(damaged: Path) -> None:
    for verify in (True, "load"):
        with pytest.raises(tensorwire.CorruptDataError, match="expected checksum"):
            tensorwire.load_file(damaged, framework="pt", verify=verify)  # type: ignore[call-overload]


def test_a_block_is_checked_once_for_all_who_use_the_frame(file: Path) -> None:
    """Memory that goes bad afterwards is not noticed; a block that nobody has decoded is checked still."""
    w = weight(file)
    user = w.detach()
    expected = w[:1]
    w.frame[-100] ^= 1
    first = int(w.frame.numel()) // 100  # of the first block
    before = user[:1]
    w.frame[first] ^= 1
    assert not is_refused(user, slice(0, 1))
    w.frame[first] ^= 1
    assert same(before, expected)
    assert is_refused(user)


@pytest.mark.parametrize("bad", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_threads_race_for_the_first_use(file: Path, mode: str, bad: bool) -> None:
    for _ in range(8):
        w = weight(file)
        w.set_linear_mode(mode)
        if bad:
            w.frame[-100] ^= 1
        barrier = threading.Barrier(4)

        def use(w: Any, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait()
            try:
                return torch.nn.functional.linear(inputs(), w)
            except tensorwire.CorruptDataError as error:
                return error.tensor, error.block

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(use, [w] * 4))
        if bad:
            assert len(set(outcomes)) == 1
            assert outcomes[0][0] == BAD
        else:
            assert all(same(outcome, outcomes[0]) for outcome in outcomes)


def in_child(action: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if action() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_knows_what_was_checked_before(file: Path) -> None:
    """What it checks itself, nobody else knows."""
    w = weight(file)
    w[:1].sum()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP of GNU does not survive a fork otherwise
    try:
        assert in_child(lambda: w[-1:] is not None)
        w.frame[-100] ^= 1
        assert is_refused(w)
        w.frame[-100] ^= 1
        w[-1:].sum()
        w.frame[-100] ^= 1
        assert in_child(lambda: not is_refused(w))
    finally:
        torch.set_num_threads(threads)


def test_a_pickle_or_a_copy_is_checked_anew(file: Path) -> None:
    w = weight(file)
    w.decode()
    w.frame[-100] ^= 1
    assert is_refused(pickle.loads(pickle.dumps(w)))
    memory = io.BytesIO()
    torch.save(w, memory)
    memory.seek(0)
    assert is_refused(torch.load(memory, weights_only=True))
    with pytest.raises(tensorwire.CorruptDataError) as caught:
        w.clone().decode()
    assert (caught.value.file, caught.value.tensor) == (str(file), BAD)


def test_a_frame_is_checked_before_it_leaves_the_cpu(damaged: Path) -> None:
    """Nobody checks it on a device."""
    with pytest.raises(tensorwire.CorruptDataError, match="expected checksum"):
        weight(damaged, device="meta")
    w = weight(damaged)
    with pytest.raises(tensorwire.CorruptDataError, match="expected checksum"):
        w.to("meta")
    on_device = weight(damaged, "0.weight", device="meta", verify=False)
    with pytest.raises(tensorwire.CorruptDataError, match="expected checksum"):
        on_device.copy_(w)
    assert weight(damaged, device="meta", verify=False).device.type == "meta"
