"""The documents do what they say: Python examples run, and the pages of the API have every public name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import pytest

import tensorwire
import tensorwire.checkpoint
import tensorwire.sync
import tensorwire.sync.interchange
from tensorwire.codec.view import dtypes

if TYPE_CHECKING:
    from tests.support.programs import Programs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "job" / "README.md",
    *sorted((ROOT / "job" / "docs").rglob("*.md")),
]
OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "job/CHANGELOG.md", "job/SECURITY.md")
WRITTEN = [*PAGES, *(ROOT / name for name in OTHERS)]
API = ROOT / "docs" / "api.md"
API_JOB = ROOT / "job" / "docs" / "api.md"
API_TORCH = ROOT / "docs" / "api-torch.md"
API_TRAFFIC = ROOT / "docs" / "api-traffic.md"
KV = ROOT / "docs" / "kv.md"
SYNC_VERSIONS = ROOT / "docs" / "sync-versions.md"

NOT_RUN = {
    "job/docs/index.md": "job/tests/service/test_diagnose.py runs it on a job",
    "job/docs/nccl.md": "it needs a job under NCCL; job/tests/nccl/test_nccl_ras.py asks a server instead",
    "docs/lmcache.md": "it needs LMCache; make lmcache runs tests/kv/test_lmcache.py",
    "docs/sync-engines.md": "it needs trainers and engines; the page says what of it was run, and by which program",
    "docs/traffic.md": "it needs ranks; examples/traffic_fsdp.py and tests/torch/traffic run what it shows",
    "docs/vllm.md": "it needs vLLM; make vllm runs tests/torch/test_vllm*.py and tests/kv/test_vllm*.py",
    "docs/training.md": "it needs a model and data; test_trainer_callback.py and test_lightning.py run what it shows",
    "docs/tutorial.md": "tests/test_tutorial.py runs it, commands and programs in their order",
}
"""Pages whose examples need what is not there, and what that is."""


def examples() -> list[tuple[str, str]]:
    """(where, code) of every block that is marked as Python, indented ones too."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^( *)```python\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            code = re.sub(f"^{match[1]}", "", match[2], flags=re.MULTILINE)
            found.append((f"{page.relative_to(ROOT).as_posix()}:{line}", code))
    return found


@pytest.mark.xdist_group("programs")
@pytest.mark.parametrize(("where", "code"), [pytest.param(*example, id=example[0]) for example in examples()])
def test_an_example_runs(where: str, code: str, tmp_path: Path, programs: Programs) -> None:
    page = where.partition(":")[0]
    if page in NOT_RUN:
        pytest.skip(NOT_RUN[page])
    if "safetensors" in re.findall(r"^import (\w+)", code, re.MULTILINE):
        pytest.importorskip("safetensors")
    run = programs.run(code, folder=tmp_path, warnings="error")
    assert run.returncode == 0, f"{where}:\n{run.stderr}"


def test_what_is_not_run_is_there() -> None:
    assert set(NOT_RUN) <= {where.partition(":")[0] for where, _ in examples()}


def signatures(page: Path) -> dict[str, str]:
    """What the page says behind each name, on one line."""
    blocks = "\n".join(re.findall(r"^```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    calls = re.findall(r"^([\w.]+)(\(.*?\)) -> ", blocks, re.MULTILINE | re.DOTALL)
    return {name: " ".join(call.split()) for name, call in calls}


def signature(function: object) -> str:
    """Names and defaults alone."""
    whole = inspect.signature(function)  # type: ignore[arg-type]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in whole.parameters.values()]
    text = str(whole.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return text.replace("'", '"')


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("tensorwire", API),
        ("tensorwire.kv", KV),
        ("tensorwire_job", API_JOB),
        ("tensorwire.sync.interchange", SYNC_VERSIONS),
        ("tensorwire.torch.traffic", API_TRAFFIC),
    ],
)
def test_every_function_has_its_signature(module: str, page: Path) -> None:
    package = pytest.importorskip(module)
    names = [name for name in package.__all__ if inspect.isfunction(getattr(package, name))]
    assert names
    assert {name: signatures(page).get(name) for name in names} == {
        name: signature(getattr(package, name)) for name in names
    }


SAFETENSORS = ROOT / "docs" / "api-safetensors.md"


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("tensorwire", API),
        ("tensorwire.checkpoint", API),
        ("tensorwire.kv", KV),
        ("tensorwire_job", API_JOB),
        ("tensorwire.torch", API_TORCH),
        ("tensorwire.torch.traffic", API_TRAFFIC),
        *((f"tensorwire.safetensors{name}", SAFETENSORS) for name in ("", ".numpy", ".torch")),
    ],
)
def test_every_public_name_is_on_its_page(module: str, page: Path) -> None:
    names = pytest.importorskip(module).__all__
    assert [name for name in names if not re.search(rf"\b{name}\b", page.read_text())] == []


def test_every_function_has_a_section_that_says_its_errors() -> None:
    for name in tensorwire.__all__:
        if inspect.isfunction(getattr(tensorwire, name)):
            assert "Errors:" in sections(API)[name], name


READERS = (
    *("apply_checkpoint", "compose", "convert_checkpoint", "decompress", "decompress_checkpoint", "decompress_range"),
    *("diff", "inspect", "load_file", "open_file", "transcode_checkpoint", "verify", "FrameReader", "sync.Follower"),
    *("checkpoint.TensorReader.get_slice", "checkpoint.TensorReader.get_tensor", "kv.KVCodec.decode"),
    *("torch.CompressedTensor.decode", "torch.dcp.TensorwireReader", "torch.decompress_module"),
    *("torch.device.DevicePages.decode", "torch.device.apply_", "torch.device.decode_frame"),
)
"""What decodes frames."""


@pytest.mark.parametrize("name", READERS)
def test_a_reader_says_whether_it_compares_the_content_hash(name: str) -> None:
    """docs/format.md, "Checking and trusting readers"."""
    if name.startswith("torch."):
        pytest.importorskip("torch")
    said = inspect.getdoc(resolve_name(f"tensorwire.{name}"))
    assert re.search(r"(checking|trusting)\s+reader", said or "")


def test_every_public_method_is_on_the_page() -> None:
    page = API.read_text()
    for kind in (tensorwire.checkpoint.TensorReader, tensorwire.checkpoint.TensorSlice):
        methods = [name for name in vars(kind) if not name.startswith("_")]
        assert methods
        for name in methods:
            assert f"`{name}(" in page, name
    for name in (*tensorwire.FrameInfo._fields, "ratio"):
        assert f"`{name}`" in page, name


def sections(page: Path) -> dict[str, str]:
    """What stands below each heading of a name."""
    return dict(re.findall(r"^### ([\w.]+)\n(.*?)(?=^##|\Z)", page.read_text(), re.MULTILINE | re.DOTALL))


def test_every_field_under_torch_is_on_its_page() -> None:
    torch_api = pytest.importorskip("tensorwire.torch")
    counters = pytest.importorskip("tensorwire.torch.traffic.counters")
    ratio = ("ratio",)
    for kind, more, page in (
        (torch_api.MemoryReport, ratio, API_TORCH),
        (torch_api.ModuleMemory, ratio, API_TORCH),
        (counters.Row, (), API_TRAFFIC),
    ):
        text = page.read_text()
        assert [name for name in (*kind.__dataclass_fields__, *more) if f"`{name}`" not in text] == []


def test_every_function_under_torch_has_its_signature_and_errors() -> None:
    torch_api = pytest.importorskip("tensorwire.torch")
    functions = {name: getattr(torch_api, name) for name in torch_api.__all__}
    functions = {name: function for name, function in functions.items() if inspect.isfunction(function)}
    for name in ("from_dense", "decode", "set_linear_mode"):
        functions[f"CompressedTensor.{name}"] = getattr(torch_api.CompressedTensor, name)
    expected = {
        name: signature(function).replace("(self, ", "(").replace("(self)", "()")
        for name, function in functions.items()
    }
    said = signatures(API_TORCH)
    assert {name: said.get(name) for name in functions} == expected
    for name in functions:
        assert "Errors:" in " ".join(sections(API_TORCH)[name].split()), name


def test_every_class_and_parameter_of_sync_is_on_its_page() -> None:
    page = (ROOT / "docs" / "sync.md").read_text()
    for thing in (getattr(tensorwire.sync, name) for name in tensorwire.sync.__all__):
        if inspect.isfunction(thing):
            continue
        calls = [thing] + [call for each, call in vars(thing).items() if inspect.isfunction(call) and each[0] != "_"]
        for call in calls:
            for parameter in set(inspect.signature(call).parameters) - {"self"}:
                assert re.search(rf"\b{call.__name__}\([^)]*\b{parameter}\b", page), f"{call.__qualname__}: {parameter}"


def test_the_table_of_dtypes_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| (\d+) \| (\S+) \| (\S+) \|$", API.read_text(), re.MULTILINE)
    said = {name: (int(bits), numpy.strip("`"), torch.strip("`")) for name, bits, numpy, torch in rows}
    assert said == {
        name: (
            dtypes.dtype_bits(name),
            dtypes.numpy_name(name) or "-",
            dtypes.torch_name(name) or "-",
        )
        for name in dtypes._DTYPES
    }


def test_the_errors_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", API.read_text(), re.MULTILINE))
    expected = [name for name in tensorwire.__all__ if name.endswith("Error") and name != "TensorwireError"]
    assert sorted(rows) == sorted(expected)
    for name, base in rows.items():
        assert base in {parent.__name__ for parent in getattr(tensorwire, name).__mro__[1:]}, name


def wide_lines(page: Path) -> list[str]:
    """Lines of more than 120 columns that are neither in a table nor on a shown screen."""
    text = re.sub(r"^ *```.*?^ *```$", lambda match: "\n" * match[0].count("\n"), page.read_text(), flags=re.M | re.S)
    return [
        f"{page.relative_to(ROOT)}:{number}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")
    ]


def test_a_page_of_1000_pixels_shows_whole_signatures() -> None:
    pages = [page for page in PAGES if page.parent == ROOT / "docs" and page.name.startswith(("api", "sync"))]
    blocks = [match for page in pages for match in re.findall(r"^```text\n(.*?)^```", page.read_text(), re.M | re.S)]
    assert len(blocks) >= 40
    assert [line for block in blocks for line in block.splitlines() if "(" in line and len(line) > 88] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_are_not_wide(page: Path) -> None:
    assert not wide_lines(page)
