"""Programs under `python -m tensorwire.torch`, and those that import diffusers after `tensorwire.torch.install`."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

import tensorwire

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

from tensorwire.torch.__main__ import main  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.programs import Programs

MAIN = "from tensorwire.torch.__main__ import main; main(sys.argv[1:])"
SCRIPT = """
import sys
from safetensors.torch import load_file
import torch
print(sys.argv[1:], __name__, len(load_file(sys.argv[1])), len(torch.load(sys.argv[2], weights_only=True)))
sys.exit(7)
"""


@pytest.mark.xdist_group("programs")
def test_an_import_loads_nothing_of_it(programs: Programs) -> None:
    code = "import sys, tensorwire.torch; print([name for name in sys.modules if '.installed.' in name])"
    assert programs.run(code).stdout == "[]\n"


@pytest.mark.xdist_group("programs")
@pytest.mark.parametrize("form", ["script", "module"])
def test_a_program_reads(programs: Programs, tmp_path: Path, form: str) -> None:
    weights = {"a": torch.randn(64, 64), "b": torch.ones(3)}
    save_file(weights, tmp_path / "dense.safetensors")
    torch.save(weights, tmp_path / "dense.pt")
    for suffix in ("safetensors", "pt"):
        tensorwire.compress_checkpoint(tmp_path / f"dense.{suffix}", tmp_path / f"packed.{suffix}")
    (tmp_path / "script.py").write_text(SCRIPT)
    files = [str(tmp_path / name) for name in ("packed.safetensors", "packed.pt")]
    what = ["-m", "script"] if form == "module" else [str(tmp_path / "script.py")]
    done = programs.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{MAIN}", *what, *files)
    assert (done.returncode, done.stdout) == (7, f"{files} __main__ 2 2\n"), done.stderr


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["-m"], 2), (["-x"], 2), (["--help"], 0)])
def test_no_program_gets_the_usage(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        main(arguments)
    assert ended is None or ended.value.code == code
    printed = capsys.readouterr()
    assert (printed.err if code else printed.out).startswith("usage: python -m tensorwire.torch")
    assert (printed.out if code else printed.err) == ""


@pytest.mark.xdist_group("programs")
def test_a_program_that_is_not_there(programs: Programs) -> None:
    for arguments, code, said in (
        (["none.py"], 2, "can't open file 'none.py'"),
        (["-m", "tests.no_module"], 1, "No module named tests.no_module"),
    ):
        done = programs.run(f"import sys\n{MAIN}", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert said in done.stderr


@pytest.mark.slow
def test_a_traceback_is_the_programs(tmp_path: Path) -> None:
    """And so are the exit code and the place where modules are looked for first."""
    (tmp_path / "script.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text("raise ValueError('here')\n")
    command = [sys.executable, "-m", "tensorwire.torch", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expected = subprocess.run([sys.executable, command[-1]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)


DIFFUSERS = {
    "diffusers/__init__.py": "__version__ = '9.8.7'",
    "diffusers/utils/__init__.py": "from .hub_utils import _get_checkpoint_shard_files",
    "diffusers/utils/hub_utils.py": """
def _get_checkpoint_shard_files():
    names = {"a.weight": "1", "a._weight_tensorwire": "1", "_b_tensorwire": "2"}
    return ["1", "2"], {"weight_map": names, "all_checkpoint_keys": list(names)}
""",
    "diffusers/configuration_utils.py": """
from .utils import _get_checkpoint_shard_files
class ConfigMixin:
    @classmethod
    def NAME(cls, json_file):
        return {"_class_name": cls.__name__, "quantization_config": json_file}
""",
}
LATE = """
import sys, warnings
sys.path.insert(0, ".")
import tensorwire.torch
tensorwire.torch.install()
hooks = len(sys.meta_path)
with warnings.catch_warnings(record=True) as caught:
    from diffusers.configuration_utils import ConfigMixin, _get_checkpoint_shard_files
print(hooks - len(sys.meta_path), *[warning.message for warning in caught])
class Model(ConfigMixin):
    pass
if not caught:
    print(Model._dict_from_json_file({"quant_method": "tensorwire (...)", "version": 1, "wrapped": {"bits": 4}}))
    print(Model._dict_from_json_file({"quant_method": "other"}))
    print(_get_checkpoint_shard_files()[1]["all_checkpoint_keys"])
tensorwire.torch.uninstall()
print(vars(ConfigMixin)[sys.argv[1]].__func__.__qualname__, len(_get_checkpoint_shard_files()[1]["weight_map"]))
"""


@pytest.mark.xdist_group("programs")
def test_diffusers_is_imported_later(programs: Programs, tmp_path: Path) -> None:
    """Its configurations and indexes are read as they were, and one of another form is left alone with a warning."""
    expected = [
        "1",
        "{'_class_name': 'Model', 'quantization_config': {'bits': 4}}",
        "{'_class_name': 'Model', 'quantization_config': {'quant_method': 'other'}}",
        "['a.weight', '_b_tensorwire']",
        "ConfigMixin._dict_from_json_file 3",
    ]
    refused = "1 tensorwire.torch.install() expected diffusers.configuration_utils.ConfigMixin._dict_from_json_file, "
    for name, lines in (("_dict_from_json_file", expected), ("_read", [refused, "ConfigMixin._read 3"])):
        for path, text in DIFFUSERS.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text.replace("NAME", name))
        done = programs.run(LATE, name, folder=tmp_path / name)
        assert done.returncode == 0, done.stderr
        found = done.stdout.splitlines()
        assert len(found) == len(lines)
        assert all(map(str.startswith, found, lines)), found
