"""The benchmark of inference: its models, its contenders' bits, how it counts memory and judges targets."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import environment
from benchmarks.inference import memory
from benchmarks.inference.model import SIZES, WORD_NBYTES, Paths, prepare
from benchmarks.inference.plan import OWN, PLANS, REFERENCE

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.inference import bandwidth, contest, report, run, targets  # noqa: E402
from benchmarks.inference.alone import common, run_alone, same  # noqa: E402
from benchmarks.inference.contenders import CONTENDERS, Task  # noqa: E402
from benchmarks.inference.plan import Group, Plan  # noqa: E402
from benchmarks.inference.process import ContenderError, Process  # noqa: E402
from benchmarks.inference.turns import run_group  # noqa: E402
from tests.support import forks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # by ZipNN
TINY = SIZES["tiny"]
PROMPT = [[5, 1000, 17, 3, 2]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    paths = Paths(tmp_path_factory.mktemp("inference"))
    facts = prepare(TINY, paths)
    assert facts["dense_nbytes"] == pytest.approx(sum(path.stat().st_size for path in shards(paths.dense)), rel=0.01)
    for contender in CONTENDERS.values():
        if contender.make and contender.installed:
            contender.make(TINY, paths)
    return paths


def shards(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def tokens(decoder: Any, count: int) -> tuple[list[int], list[Any]]:
    """The likeliest tokens and all logits."""
    logits = [decoder.start(PROMPT)]
    for _ in range(count):
        logits.append(decoder.step(logits[-1].argmax(-1).tolist()))
    return [int(each.argmax()) for each in logits], logits


def test_models_have_the_sizes_that_they_are_named_for() -> None:
    assert 0.35e9 < SIZES["0.4b"].numel < 0.45e9
    assert 1e9 < SIZES["1b"].numel < 1.4e9
    assert 2e9 < WORD_NBYTES * SIZES["1b"].numel < 4e9
    assert 11.5e9 < SIZES["12b"].numel < 12.5e9
    # Two tensors of 2 x 256 each, and one of 256, are norms.
    by_hand = 2048 * 256 + 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 704 * 256) + 5 * 256
    assert TINY.numel == by_hand
    assert TINY.kv_nbytes(10) == 2 * 2 * 128 * 10 * 2
    assert TINY.part_nbytes()[0] == 2 * 2048 * 256


def test_a_checkpoint_is_made_again_alike(model: Paths, tmp_path: Path) -> None:
    again = Paths(tmp_path)
    prepare(TINY, again)
    for one, other in zip(shards(model.dense), shards(again.dense), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_weights_have_scales_of_rows_and_columns(model: Paths) -> None:
    from safetensors.torch import load_file

    weight = load_file(shards(model.dense)[0])["model.layers.1.mlp.up_proj.weight"].double()
    for dim in (0, 1):
        spread = weight.std(dim).log().std().item()
        assert 0.25 < spread < 0.35


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_contender_has_the_bits_of_dense_torch(name: str, model: Paths) -> None:
    contender = CONTENDERS[name]
    if not contender.installed:
        pytest.skip(f"{contender.package} is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected, dense = tokens(CONTENDERS[REFERENCE].load(Task(TINY, model)), 3)
        found, logits = tokens(contender.load(Task(TINY, model)), 3)
        if contender.exact:
            assert all(map(torch.equal, dense, logits))
        elif name.startswith("fused"):
            own = tokens(CONTENDERS[OWN].load(Task(TINY, model)), 3)[1]
            assert all(map(torch.equal, own, logits))
        torch.testing.assert_close(logits[0].float(), dense[0].float(), atol=0.1, rtol=0.1)
        assert found[0] in dense[0][0].topk(3).indices
    finally:
        torch.set_num_threads(threads)
    assert len(expected) == 4


def forked(line: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    """A contender's process that is forked, and imports nothing anew. `test_a_quick_run_has_every_table` starts them
    as programs."""
    python, as_module, module, *arguments = line
    assert (python, as_module, module) == (sys.executable, "-m", contest.__name__)

    def act() -> None:
        sys.argv = [module, *arguments]
        contest.main()

    return forks.popen(act, env, args=line, **options)


def test_processes_take_orders_and_say_why_they_end(model: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", forked)
    with Process("exact, fast", "tiny", model.folder, 1) as process:
        assert process("load")["imported"] > 1 << 20
        process("prompt", length=4, batch=2)
        assert len(process("tokens", count=5, budget=0.0)["seconds"]) == 1
        assert len(process("tokens", count=2)["seconds"]) == 2
        answer = process("answer")
        assert len(answer["answer"]) == len(answer["digests"]) == 4
        assert process("products")["nbytes"] == 2 * (TINY.numel - 5 * 256)
        assert process("peak")["peak"] > process("peak")["imported"]
        with pytest.raises(ContenderError, match="no_such_order"):
            process("no_such_order")


@pytest.mark.slow
def test_a_quick_run_has_every_table(model: Paths) -> None:
    plan = Plan((REFERENCE, "exact, fast"), {}, tokens=2)
    rows = run_alone(plan, TINY, model, None)
    group = Group((REFERENCE, OWN, "fused, fast"), threads=(2,), rounds=1, tokens=1, products=True, batch=2)
    turns, measured = run_group(group, TINY, model)
    facts = dict.fromkeys(("cpu", "cores", "caches", "memory", "system", "huge_pages", "python", "date", "commit"), "")
    found = {
        "environment": [{**facts, "load": 0.0, "command": "make inference", "versions": {"torch": "2"}}],
        "models": [prepare(TINY, model)],
        "alone": rows,
        "turns": turns,
        "bandwidth": measured,
    }
    page = report.PAGE.render(json.loads(json.dumps(run._named("tiny", found))), environment.RESULTS)
    assert "[The page of inference](../../docs/inference-benchmark.md)" in page
    for start in ("| dense |", "| exact, fast |", "| DFloat11 | its decoder", "| fused, fast | 2 |"):
        assert any(line.startswith(start) for line in page.splitlines()), start
    assert "cycles a word in the cache" in page
    assert "differ" not in page
    assert page.count("identical") == 5


def test_what_is_equal_is_counted_from_the_start() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [1, 2, 4]) == 2
    assert common([], [1]) == 0
    assert same(["a", "b"], ["a", "b", "c"]) is True
    assert same(["a", "x"], ["a", "b", "c"]) is False
    assert same([], ["a"]) is None


def test_the_model_of_a_kernel_by_hand() -> None:
    kernel = {"cycles": 0.8, "hz": 4e9, "nbytes": 1.333}
    # 0.8 / (2 * 4e9) = 0.1 ns a word; dense 2 / 20 = 0.1 ns; compressed bytes 0.067 ns.
    assert bandwidth.predicted(kernel, 2, 20) == pytest.approx(1.0)
    assert bandwidth.predicted(kernel, 64, 20) == pytest.approx(1.333 / 2)
    assert [row["cores"] for row in bandwidth.predictions(kernel, 20)] == [2, 8, 64]


def test_reading_memory_counts_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "timed", lambda call: (2.0, call()))
    assert bandwidth.Memory(1 << 22).gbs(2) == (1 << 22) / 2.0 / 1e9


def test_the_peak_of_memory_is_seen() -> None:
    code = (
        "from benchmarks.inference import memory\n"
        "memory.forget_peak()\n"
        "before = memory.peak_nbytes()\n"
        "held = b'x' * (64 << 20)\n"
        "del held\n"
        "print(memory.peak_nbytes() - before, memory.resident_nbytes())\n"
    )
    line = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=environment.ROOT
    )
    grown, resident = map(int, line.stdout.split())
    assert 60 << 20 < grown < 72 << 20
    assert resident < 64 << 20


def test_a_limit_of_memory_is_true() -> None:
    """A process in it ends when it takes more, and the files that it reads count."""
    try:
        with memory.limited(256 << 20) as group:
            code = (
                "from pathlib import Path; import sys; from benchmarks.inference import memory\n"
                f"memory.join(Path({str(group.folder)!r}))\n"
                "print('joined', flush=True)\n"
                "held = bytearray(b'x') * (512 << 20)\n"
            )
            found = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=environment.ROOT
            )
            assert found.stdout == "joined\n"
            assert found.returncode == -9
            peak = group.peak()
            assert peak is None or 200 << 20 < peak <= 256 << 20
            folder = group.folder
    except OSError as error:
        pytest.skip(str(error))
    assert not folder.exists()


def test_without_a_controller_the_limit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    with pytest.raises(OSError, match="no controller of memory"), memory.limited(1 << 30):
        pass
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    with memory.limited(1 << 30) as group:
        assert (group.folder / "memory.max").read_text() == str(1 << 30)
        assert group.peak() is None
        for path in group.folder.iterdir():
            path.unlink()  # files of a real group go with it
    assert not group.folder.exists()


@pytest.fixture
def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((environment.RESULTS / "inference.json").read_text())
    return found


@pytest.mark.parametrize("part", ["alone", "turns"])
def test_other_logits_are_missed_wherever_they_come(part: str, measured: dict[str, Any]) -> None:
    wrong = [row | {"same_logits": False} for row in measured[part]]
    verdicts = targets.evaluate(measured | {part: wrong})
    assert [each.met for each in verdicts if (each.target[:6], each.subject) == ("logits", "exact, fast")] == [False]


def test_targets_of_avx512_bf16_are_not_measured_without_it(measured: dict[str, Any]) -> None:
    verdicts = targets.evaluate(measured | {"environment": [{"model": "1b", "avx512_bf16": False}]})
    of_torch = [(each.cpu, each.met) for each in verdicts if each.target.endswith("of dense torch")]
    assert {met for cpu, met in of_torch if not cpu} == {None}
    assert None not in {met for cpu, met in of_torch if cpu}


def test_what_was_not_measured_is_said() -> None:
    empty = {"environment": [], "models": [], "alone": [], "turns": [], "bandwidth": []}
    assert {verdict.met for verdict in targets.evaluate(empty)} == {None}


def test_a_run_of_one_model_keeps_the_rows_of_the_others() -> None:
    old = {part: [{"model": "1b", "age": "old"}, {"model": "12b", "age": "old"}] for part in run.PARTS}
    new = {part: [{"model": "1b", "age": "new"}] for part in run.PARTS}
    for rows in run.merged(old, new, ["1b"]).values():
        assert sorted((row["model"], row["age"]) for row in rows) == [("12b", "old"), ("1b", "new")]


def test_plans_name_contenders_and_models() -> None:
    for name, plan in PLANS.items():
        assert name in SIZES
        assert plan.names() <= set(CONTENDERS)
        assert plan.reference in plan.alone
