"""Rows between ranks, and their gradients, against torch's own all_to_all_single."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single

from tensorwire.torch.traffic import Bounded, Budget, Exact, ExchangeError, Float8, Grid, all_to_all, counters
from tensorwire.torch.traffic.attach.all_to_all import _EXCHANGES
from tensorwire.torch.traffic.codecs.codec import Raw, same_bytes
from tests.support.sharded_models import Refuses

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire.torch.traffic.codecs.codec import Codec
    from tests.support.ranks import Ranks

SIZE = 4
WIDTH = 48


def splits_of(step: int) -> list[int]:
    """For this rank: uneven, others in each step, zeros among them."""
    rank = dist.get_rank()
    return [(7 * rank + 5 * other + 11 * step) % 13 * ((rank + other + step) % 3 > 0) for other in range(SIZE)]


def rows_of(step: int, dtype: torch.dtype = torch.bfloat16, splits: list[int] | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    count = sum(splits_of(step) if splits is None else splits)
    return torch.randn(count, WIDTH, generator=generator).to(dtype).requires_grad_()


def by_torch(rows: torch.Tensor, splits: list[int]) -> tuple[torch.Tensor, list[int]]:
    come = torch.empty(SIZE, dtype=torch.int64)
    dist.all_to_all_single(come, torch.tensor(splits))
    counts = come.tolist()
    return all_to_all_single(rows.new_empty(sum(counts), WIDTH), rows, counts, splits), counts


def run_both(codec: Codec, dtype: torch.dtype) -> tuple[bool, float, float]:
    """Whether all bits are those of torch, and the largest errors of rows and gradients, of ones of about 1."""
    same, errors = True, [0.0, 0.0]
    for step in range(4):
        splits, ours, theirs = splits_of(step), rows_of(step, dtype), rows_of(step, dtype)
        (got, come), (expected, counts) = all_to_all(ours, splits, codec=codec), by_torch(theirs, splits)
        assert come == counts
        assert got.shape == expected.shape
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(step)).to(dtype)
        for each in (got, expected):
            (each * weights).sum().backward()
        for place, pair in enumerate(((got, expected), (ours.grad, theirs.grad))):
            same = same and same_bytes(*(each.detach().contiguous() for each in pair))
            difference = (pair[0].detach().double() - pair[1].detach().double()).abs()
            errors[place] = max(errors[place], *difference.flatten().tolist(), 0.0)
    return same, errors[0], errors[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_exact_has_the_bits_of_torch_in_both_directions(ranks: Ranks, dtype: torch.dtype) -> None:
    for codec in (Exact(), Raw()):
        assert [same for same, _, _ in ranks.run(run_both, codec, dtype)] == [True] * SIZE


@pytest.mark.parametrize(
    ("codec", "error"), [(Grid(8, 48), 5 / 127), (Grid(4, 48), 5 / 7), (Float8("e4m3", 48), 0.3), (Bounded(0.05), 0.06)]
)
def test_lossy_codecs_are_coded_in_both_directions(ranks: Ranks, codec: Codec, error: float) -> None:
    for same, forward, backward in ranks.run(run_both, codec, torch.float32):
        assert not same
        assert 0 < forward <= error
        assert 0 < backward <= error


def own_rows() -> tuple[bool, bool]:
    """What a rank keeps is copied, and a lossy codec has the gradient of the identity."""
    rank = dist.get_rank()
    rows = rows_of(0, torch.float32, [3] * SIZE)
    got, _ = all_to_all(rows, [3] * SIZE, codec=Grid(2, 8), backward=Raw())
    got.sum().backward()
    mine = slice(3 * rank, 3 * rank + 3)
    return torch.equal(got[mine], rows[mine]), bool((rows.grad == 1).all())


def derivatives() -> bool:
    """Each rank's loss has rows of all ranks: gradcheck by hand, of the sum over ranks."""
    splits = [2, 0, 1, 3]
    rows = rows_of(0, torch.float64, splits)

    def loss(values: torch.Tensor) -> torch.Tensor:
        got, _ = all_to_all(values.view(-1, WIDTH), splits, codec=Exact())
        return (got.sin() * (1 + dist.get_rank())).sum()

    loss(rows).backward()
    expected = torch.empty_like(rows)
    for place, part in enumerate(rows.detach().split(splits)):
        expected[sum(splits[:place]) :][: len(part)] = part.cos() * (1 + place)
    torch.testing.assert_close(rows.grad, expected)
    return True


def shapes_and_layouts() -> list[bool]:
    found = []
    wide = torch.arange(SIZE * 5 * 6, dtype=torch.float32).view(SIZE, 5, 6) + 1000 * dist.get_rank()
    for rows in (wide, wide.transpose(1, 2), wide[..., ::2], wide[:, 0, 0], wide.long(), wide.expand(SIZE, 5, 6)):
        got, come = all_to_all(rows, [1] * SIZE)
        mine = dist.get_rank()
        expected = torch.stack([rows[mine] + 1000 * (other - mine) for other in range(SIZE)])
        found.append(come == [1] * SIZE and torch.equal(got, expected) and not got.requires_grad)
    leaf = wide.clone().requires_grad_()
    got, _ = all_to_all(leaf.transpose(1, 2), [1] * SIZE)
    (got.transpose(1, 2) * torch.ones(()).expand(SIZE, 5, 6)).sum().backward()
    return [*found, bool((leaf.grad == 1).all())]


def counted() -> list[dict[str, Any]]:
    name = "tokens"
    for _ in range(3):
        got, _ = all_to_all(rows_of(0, splits=[40] * SIZE), [40] * SIZE, codec=Grid(4, 128), name=name)
        got.sum().backward()
    return [vars(row) for row in counters(dist.group.WORLD) if row.tensor == name]


def test_both_directions_are_counted(ranks: Ranks) -> None:
    numel = 40 * WIDTH
    for rows in ranks.run(counted):
        assert [row["direction"] for row in rows] == ["all_to_all", "all_to_all, backward"]
        for row in rows:
            assert row["calls"] == 3
            assert row["raw_nbytes"] == 3 * 3 * numel * 2
            assert row["sent_nbytes"] == 3 * 3 * (numel * 4.25 / 8)
            assert row["encode_seconds"] > 0
            assert row["decode_seconds"] > 0


def first_then_finer(name: str, call: int) -> Codec:
    assert name == "schedule"
    return Grid(2, 8) if call == 0 else Exact()


def scheduled() -> list[bool]:
    """Whether the bits are right: a function of name and call chooses the codec."""
    found = []
    for _ in range(2):
        rows = rows_of(1, splits=[4] * SIZE).detach()
        got, _ = all_to_all(rows, [4] * SIZE, codec=first_then_finer, name="schedule")
        found.append(torch.equal(got, by_torch(rows, [4] * SIZE)[0]))
    return found


def error_of(call: Callable[[], Any]) -> str:
    """What it raises, after which the next call is right."""
    text = "nothing"
    try:
        call()
    except (TypeError, ValueError, ExchangeError) as error:
        text = f"{type(error).__name__}: {error}"
    assert all_to_all(torch.ones(SIZE, WIDTH), [1] * SIZE)[0].sum() == SIZE * WIDTH
    return text


def wrong_splits(wrong: Any) -> str:
    """What rank 1 raises, and the others."""
    splits = wrong if dist.get_rank() == 1 else [1] * SIZE
    return error_of(lambda: all_to_all(torch.zeros(SIZE, WIDTH), splits))


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(each, "ValueError") for each in ([1, 1, 1], [1, 1, 1, 2], [5, -1, 0, 0], [], [1] * 5)]
    + [(each, "TypeError") for each in ([1.0] * 4, None, "1111")],
)
def test_wrong_splits_are_an_error_everywhere_and_hang_nobody(ranks: Ranks, wrong: Any, kind: str) -> None:
    errors = ranks.run(wrong_splits, wrong)
    assert errors[1].startswith(f"{kind}: expected 4 numbers of rows for a tensor (4, 48), got {wrong!r}")
    for rank in (0, 2, 3):
        assert errors[rank] == "ExchangeError: rank 1 has splits that do not fit its rows"


def unlike_rows(width: int, dtype: torch.dtype, name: str) -> str:
    """What rank 1 sends is unlike what the others send."""
    wrong = dist.get_rank() == 1
    rows = torch.zeros(SIZE, width, dtype=dtype) if wrong else torch.zeros(SIZE, WIDTH)
    return error_of(lambda: all_to_all(rows, [1] * SIZE, name=name if wrong else "rows"))


@pytest.mark.parametrize(
    ("width", "dtype", "name"),
    [
        (50_000, torch.float32, "rows"),
        (WIDTH - 1, torch.float32, "rows"),
        (WIDTH, torch.int32, "rows"),
        (WIDTH, torch.float32, "x"),
    ],
)
def test_unlike_rows_are_an_error_everywhere_and_hang_nobody(
    ranks: Ranks, width: int, dtype: torch.dtype, name: str
) -> None:
    errors = ranks.run(unlike_rows, width, dtype, name)
    for rank, error in enumerate(errors):
        other = 0 if rank == 1 else 1
        assert error.startswith(f"ExchangeError: rank {other} sends another tensor, or has another codec for it")


def gradients_on_one() -> str:
    rows = torch.ones(SIZE, WIDTH, requires_grad=dist.get_rank() == 1)
    error = error_of(lambda: all_to_all(rows, [1] * SIZE))
    with torch.no_grad():  # where nobody asks for gradients, the rows are alike
        assert torch.equal(all_to_all(rows, [1] * SIZE)[0], rows)
    return error


def test_rows_with_a_gradient_on_one_rank_are_an_error_everywhere(ranks: Ranks) -> None:
    for rank, error in enumerate(ranks.run(gradients_on_one)):
        assert error.startswith(f"ExchangeError: rank {0 if rank == 1 else 1} sends another tensor")
        assert "rows need a gradient on all of them or on none" in error


def refused(forward: bool) -> str:
    rows = torch.zeros(SIZE, WIDTH, requires_grad=True)
    codecs = (Refuses(), Raw()) if forward else (Raw(), Refuses())
    return error_of(lambda: all_to_all(rows, [1] * SIZE, codec=codecs[0], backward=codecs[1])[0].sum().backward())


@pytest.mark.parametrize("forward", [True, False])
def test_a_rank_that_cannot_encode_is_the_same_error_on_all(ranks: Ranks, forward: bool) -> None:
    errors = ranks.run(refused, forward)
    assert set(errors) == {errors[0]}
    assert "rank 2" in errors[0]
    assert "OSError: no ink" in errors[0]


def mixed_messages() -> tuple[bool, float, int]:
    """Rows with NaN, which travel raw, stand behind and before coded ones of odd lengths. Gives whether NaN came with
    its bits, how wrong the other rows are as a part of their range, and how many bytes this rank has sent."""
    rows, name = rows_of(0, torch.float32, [3] * SIZE).detach(), "mixed"
    rows[3 * ((dist.get_rank() + 1) % SIZE), 7] = math.nan
    rows[3 * ((dist.get_rank() + 3) % SIZE), 8] = math.nan
    expected = by_torch(rows, [3] * SIZE)[0].view(SIZE, -1)
    got = all_to_all(rows, [3] * SIZE, codec=Bounded(0.1, relative=True), name=name)[0].view(SIZE, -1)
    raw = expected.isnan().any(1)
    raw[dist.get_rank()] = True
    coded, true = got[~raw], expected[~raw]
    wrong = (coded - true).abs().amax(1) / (true.amax(1) - true.amin(1))
    (row,) = (each for each in counters(dist.group.WORLD) if each.tensor == name and each.calls)
    return same_bytes(got[raw], expected[raw]), float(wrong.max()), row.sent_nbytes


def test_raw_and_coded_messages_in_one_call(ranks: Ranks) -> None:
    """Two of the three messages of a rank are raw, and one is coded."""
    raw = 3 * WIDTH * 4
    for same, wrong, sent_nbytes in ranks.run(mixed_messages):
        assert same
        assert 0 < wrong <= 0.1 * (1 + 2**-20)
        assert 2 * raw < sent_nbytes < 2.6 * raw


def groups_come_and_go() -> list[Any]:
    """A group of two, one with the same ranks after its end, and a group of one rank."""
    rank, found = dist.get_rank(), []
    for value in (1.0, 2.0, 3.0):
        pairs = [dist.new_group(each) for each in ([0, 1], [2, 3])]
        group = pairs[rank // 2]
        got, _ = all_to_all(torch.full((2, 3), value), [1, 1], group=group)
        found.append((got.sum().item(), counters(group)[0].calls))
        dist.destroy_process_group(group)
        del group, pairs
        gc.collect()
    kept = [each for each in _EXCHANGES if each is not dist.group.WORLD]
    alone = dist.new_group([rank], use_local_synchronization=True)
    rows = torch.ones(5, 2, requires_grad=True)
    got, come = all_to_all(rows, [5], group=alone)
    got.sum().backward()
    found.append((torch.equal(got, rows), come, counters(alone)[0].sent_nbytes, bool((rows.grad == 1).all())))
    return [*found, len(kept)]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (own_rows, (True, True)),
        (derivatives, True),
        (shapes_and_layouts, [True] * 7),
        (scheduled, [False, True]),
        (groups_come_and_go, [(6.0, 1), (12.0, 1), (18.0, 1), (True, [5], 0, True), 0]),
    ],
)
def test_what_each_rank_finds(ranks: Ranks, job: Callable[[], Any], expected: Any) -> None:
    assert ranks.run(job) == [expected] * SIZE


@pytest.mark.parametrize(
    ("codec", "text"),
    [(each, "codec for rows, a function of name and step, or") for each in ("fast", None, 3)]
    + [(Exact, r"got the class Exact; write Exact\(\)"), (Budget(), "which chooses for attach_ddp alone")],
)
def test_what_is_no_codec_is_refused_at_once(codec: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        all_to_all(torch.zeros(1, 1), [1], codec=codec)


@pytest.mark.parametrize("codecs", [{"codec": Grid(4, 128)}, {"backward": Bounded(0.1)}])
def test_integers_have_no_lossy_codec(codecs: Any) -> None:
    with pytest.raises(TypeError, match=r"expected rows of floating-point numbers for .*, got torch.int64"):
        all_to_all(torch.zeros(1, 1, dtype=torch.int64), [1], **codecs)
