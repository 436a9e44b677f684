"""Experts are one parameter of three dimensions: those that a token is sent to are decoded, no others."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorwire

torch = pytest.importorskip("torch", minversion="2.8")
transformers = pytest.importorskip("transformers")

from tensorwire.torch import CompressedTensor, prepare, set_linear_mode  # noqa: E402
from tensorwire.torch.frames.open_frame import OpenFrame  # noqa: E402
from tensorwire.torch.tensors.matrices import Matrices  # noqa: E402
from tests.support.disguised import DEVICE, DisguisedDevice, step  # noqa: E402
from tests.support.transformer_models import load, save  # noqa: E402
from tests.torch.device.stand_in import StandIn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

EXPERTS, OF_A_TOKEN, LAYERS = 4, 2, 2
IMPLEMENTATIONS = ["grouped_mm", "batched_mm", "eager"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with experts, and compressed."""
    path = tmp_path_factory.mktemp("models")
    save("moe", path / "dense")
    tensorwire.compress_checkpoint(path / "dense", path / "packed")
    return path


def both(folder: Path, **options: Any) -> list[Any]:
    """The dense model and the compressed one."""
    return [load(folder / name, "moe", **options) for name in ("dense", "packed")]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """How many matrices of experts were decoded, by the shape of all of them."""
    found: Counter[tuple[int, ...]] = Counter()
    decode = OpenFrame.decode

    def counted(self: OpenFrame, first: int, out: torch.Tensor, threads: int | None = None) -> None:
        if len(self.shape) == 3:
            found[self.shape] += out.numel() // (self.shape[1] * self.shape[2])
        decode(self, first, out, threads)

    monkeypatch.setattr(OpenFrame, "decode", counted)
    return found


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_experts_on_the_cpu(implementation: str, folder: Path, decoded: Counter[tuple[int, ...]]) -> None:
    dense, model = both(folder, experts_implementation=implementation)
    for tokens in (torch.tensor([[7]]), torch.arange(1, 41).view(2, 20)):
        decoded.clear()
        with torch.no_grad():
            assert torch.equal(model(tokens).logits, dense(tokens).logits)
        if tokens.numel() == 1:
            assert len(decoded) == 2
            assert set(decoded.values()) == {LAYERS * OF_A_TOKEN}
        elif implementation != "eager":
            assert max(decoded.values()) <= LAYERS * EXPERTS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products_of_groups(dtype: torch.dtype, decoded: Counter[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((5, 64, 128), generator=generator).to(dtype)
    x = torch.randn((6, 128), generator=generator).to(dtype)
    ends = torch.tensor([0, 2, 2, 6, 6], dtype=torch.int32)
    compressed = CompressedTensor.from_dense(weight)
    found = torch.nn.functional.grouped_mm(x, compressed.transpose(-2, -1), offs=ends)
    assert torch.equal(found, torch.nn.functional.grouped_mm(x, weight.transpose(-2, -1), offs=ends))
    assert decoded == {(5, 64, 128): 2}
    lying = torch.randn((5, 128, 64), generator=generator).to(dtype)
    decoded.clear()
    found = torch.nn.functional.grouped_mm(x, CompressedTensor.from_dense(lying), offs=ends)
    assert torch.equal(found, torch.nn.functional.grouped_mm(x, lying, offs=ends))
    assert decoded == {(5, 128, 64): 2}


def test_products_of_groups_have_derivatives() -> None:
    weight = torch.randn((3, 64, 128), generator=torch.Generator().manual_seed(0)).bfloat16()
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    gradients = []
    for each in (weight, CompressedTensor.from_dense(weight)):
        x = torch.ones((5, 128), dtype=torch.bfloat16, requires_grad=True)
        found = torch.nn.functional.grouped_mm(x, each.transpose(-2, -1), offs=ends)
        (found * found).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[DisguisedDevice]:
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # threads do not know of the device
    with DisguisedDevice() as found, torch.no_grad():
        yield found


def test_a_step_on_a_device(folder: Path, device: DisguisedDevice) -> None:
    """What `generate` takes for a step there: rows of the weights, by numbers that the host does not see."""
    dense, model = both(folder, device_map=DEVICE.type, experts_implementation="batched_mm")
    expected = step(dense, device).cpu()
    assert torch.equal(step(model, device).cpu(), expected)
    assert device.calls["tensorwire: rows"] == 2 * LAYERS + 1
    whole = [p for p in model.parameters() if isinstance(p, CompressedTensor) and p.dim() == 2]
    assert device.calls["tensorwire: decode"] == len(whole) - 1  # the embedding, of which rows are taken


def test_a_fused_step_on_a_device(folder: Path, device: DisguisedDevice) -> None:
    """Experts are multiplied as they are, in one launch for those of a token."""
    dense, model = both(folder, device_map=DEVICE.type, experts_implementation="batched_mm")
    set_linear_mode(model, "fused")
    prepare(model)
    expected = step(dense, device).cpu()
    torch.testing.assert_close(step(model, device).cpu(), expected, rtol=0.05, atol=0.05)
    assert device.calls["tensorwire: rows"] == 1  # of the embedding
    assert not device.calls["tensorwire: decode"]
    weights = [p for p in model.parameters() if isinstance(p, CompressedTensor)]
    assert device.calls["tensorwire: product"] == len(weights) - 1 - joined(model)


def joined(model: Any) -> int:
    """Launches that are saved since weights are multiplied together."""
    return sum(len(names) - 1 for names in prepare(model).joined)


def test_matrices_that_are_taken_out(device: DisguisedDevice) -> None:
    weight = torch.randn((5, 64, 256), generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn((9, 256, 1), generator=torch.Generator().manual_seed(1)).bfloat16()
    compressed = CompressedTensor.from_dense(weight, "resident", linear_mode="fused").to(DEVICE)
    ids = torch.tensor([4, 0, -1, 2, 4, 1, 3, 0, 2])
    for count, launches in ((1, 1), (8, 1), (9, 0)):  # the double takes 8; of more they are decoded
        device.calls.clear()
        taken = compressed[ids[:count].to(DEVICE)]
        found = torch.bmm(taken, x[:count].to(DEVICE)).cpu()
        torch.testing.assert_close(found, torch.bmm(weight[ids[:count]], x[:count]), rtol=0.05, atol=0.05)
        assert device.calls["tensorwire: product"] == launches
    assert torch.equal((taken + 0).cpu(), weight[ids])
    assert torch.equal(taken[2].cpu(), weight[4])
    assert torch.equal(torch.bmm(x[:1].to(DEVICE).mT, taken[:1].mT).cpu(), torch.bmm(x[:1].mT, weight[4:].mT))
    assert torch.equal(compressed[ids[:4].view(2, 2).to(DEVICE)].cpu(), weight[ids[:4].view(2, 2)])


def test_matrices_are_copied_and_pickled_as_dense_ones() -> None:
    weight = torch.randn((3, 16, 32), generator=torch.Generator().manual_seed(0)).bfloat16()
    compressed, ids = CompressedTensor.from_dense(weight), torch.tensor([2, 0])
    taken = Matrices(compressed.frame, weight.dtype, weight.shape, ids)
    for copied in (copy.deepcopy(taken), pickle.loads(pickle.dumps(taken))):
        assert type(copied) is torch.Tensor
        assert torch.equal(copied, weight[ids])


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled with g++ here")
@pytest.mark.parametrize("count", [4, 8, 19, 64, 65])
def test_matrices_by_our_kernels(count: int) -> None:
    """A matrix has the bits that it has as a weight of its own. Each eight are a launch, which is planned once."""
    weight = torch.randn((3, 48, 256), generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn((count, 256), generator=torch.Generator().manual_seed(1)).bfloat16()
    ids = torch.randint(0, 3, (count,), generator=torch.Generator().manual_seed(2))
    driver = StandIn()
    with DisguisedDevice(driver) as device, torch.no_grad():
        every = CompressedTensor.from_dense(weight, "resident", linear_mode="fused").to(DEVICE)
        there, numbers = x.unsqueeze(-1).to(DEVICE), ids.to(DEVICE)
        torch.bmm(every[numbers], there)
        asked, launched = driver.compiled.total(), len(driver.launches)
        with device.no_waits():
            found = torch.bmm(every[numbers], there)
        headers = [each.kernel.header for each in driver.launches[launched:]]
        if count > 64:
            assert headers == ["rows.cuh"]
            return
        assert headers == ["thin.cuh"] * -(-count // 8)
        assert driver.compiled.total() == asked
        alone = [CompressedTensor.from_dense(each, "resident", linear_mode="fused").to(DEVICE) for each in weight]
        expected = [torch.nn.functional.linear(there[k : k + 1, :, 0], alone[ids[k]]).cpu() for k in range(count)]
        assert torch.equal(found.squeeze(-1).cpu(), torch.cat(expected))
        assert found.is_contiguous()


def test_a_prompt_on_a_device(folder: Path, device: DisguisedDevice) -> None:
    dense, model = both(folder, device_map=DEVICE.type)
    tokens: Any = torch.arange(1, 21).view(1, 20).to(DEVICE)
    found, expected = [
        each.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0).cpu() for each in (model, dense)
    ]
    assert torch.equal(found, expected)
