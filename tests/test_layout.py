"""The rules of the source tree: imports go one way, files stay small, nothing names the machine it was written on."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.imports import (
    by_name,
    check_experimental,
    check_folder,
    circles,
    cpp_includes,
    import_graph,
    imported_modules,
    module_name,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tensorwire"
MAX_LINES = 500

# What every part may import.
GROUND = ("_ground", "errors")
# Python, low to high: a part imports parts before it, never those behind it.
LAYERS = (*GROUND, "codec", "storage", "files", "checkpoint", "safetensors", "sync", "torch", "kv", "cli")
# Modules in the root of the package, by the part that they belong to.
HELPERS = {"__main__": "cli"}

# Modules that import each other in a circle, as far as that is allowed. A circle that is gone leaves the list.
CIRCLES: set[tuple[str, ...]] = set()

# C++: what a folder of core/ may include from. The C ABI is for the frame, and its statuses for common.
INCLUDES = {
    "common": {"common"},
    "transforms": {"common", "transforms"},
    "coders": {"common", "transforms", "coders"},
    "frame": {"common", "transforms", "coders", "frame"},
    "linear": {"common", "coders", "frame", "linear"},
}

# The few documents whose every line is a fact of its own may be long; so may data.
LONG = {"LICENSE", "docs/format.md"}
TEXT = {".c", ".cmake", ".cpp", ".cuh", ".h", ".md", ".py", ".toml", ".txt", ".json", ".csv", ".yml", ""}


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def layer(name: str) -> str:
    """The layer of tensorwire.x.y: x, or what x belongs to."""
    part = name.split(".")[1]
    return HELPERS.get(part, part)


def test_python_imports_go_down() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = module_name(path, PACKAGE.parent)
        if module == "tensorwire":
            continue  # the public names come from everywhere
        own = layer(module)
        for name in imported_modules(path, module):
            if not name.startswith("tensorwire."):
                assert name != "tensorwire", f"{module} imports the package itself, and with it every layer"
                continue
            other = layer(name)
            if other == own:
                continue
            assert {own, other} <= set(LAYERS), f"{module} or {name} has no place among {LAYERS}"
            assert LAYERS.index(other) < LAYERS.index(own), f"{module} imports {name}, which stands above it"
            assert not name.startswith("tensorwire.codec.frame.core"), (
                f"{module} imports {name}: only codec touches the core"
            )


# Modules that may import by a name that is not in the text, which the tables below cannot see, and why.
BY_NAME = {
    "tensorwire": "public names load on first use",
    "tensorwire._ground.packages": "a package of others is asked for its version",
    "tensorwire.cli.group": "commands load on first use",
    "tensorwire.cli.peers": "a peer is imported when it is measured",
}


def test_only_listed_modules_import_by_name() -> None:
    assert by_name(PACKAGE) == BY_NAME.keys()


# What a part may name of another one: "" is the package itself, a folder stands for all in it.
DOORS = {
    ("tensorwire", "errors"): {""},
    ("tensorwire", "codec"): {""},
    ("tensorwire", "checkpoint"): {""},
    ("tensorwire", "torch"): {"loading"},
    ("kv", "codec"): {""},
    ("kv", "torch"): {"device"},
    ("files", "codec"): {""},
    ("files", "storage"): {"ahead", "inputs", "local", "locations", "pipeline", "pool", "readable", "remote", "spool"},
    ("checkpoint", "codec"): {""},
    ("checkpoint", "files"): {
        "base", "beside", "files_before", "foreign", "given_arrays", "header", "json_object", "loader", "names",
        "original_record", "original_view", "pickle_stack", "reader", "torch_file", "transfer", "writer",
    },
    ("checkpoint", "storage"): {
        "access", "inputs", "local", "locations", "pipeline", "pool", "progress", "readable", "remote", "result",
        "spool", "staging", "upload",
    },
    ("safetensors", "checkpoint"): {"", "tensors.as_safetensors", "tensors.opening", "tensors.saving"},
    ("safetensors", "files"): {"names"},
    ("torch", "codec"): {"", "device_blocks", "products"},
    ("torch", "storage"): {"ahead", "direct", "local", "locations", "pages", "pool", "spool", "staging", "upload"},
    ("torch", "files"): {
        "beside", "frame_file", "header", "json_object", "load_ahead", "loader", "names", "original_file",
        "original_record", "original_view", "reader", "writer",
    },
    ("torch", "checkpoint"): {
        "", "bases", "directory.config_and_index", "directory.distributed", "directory.manifest",
        "tensors.as_safetensors", "tensors.saving",
    },
    ("torch", "sync"): {"", "copies", "elsewhere", "frames", "versions"},
    ("sync", "codec"): {""},
    ("sync", "storage"): {"inputs", "local", "locations", "pool", "progress", "upload"},
    ("sync", "files"): {"base", "beside", "frame_file", "header", "json_object", "names", "reader", "writer"},
    ("sync", "checkpoint"): {
        "directory.config_and_index", "directory.manifest", "directory.paths", "directory.shards",
    },
    ("cli", "codec"): {""},
    ("cli", "checkpoint"): {
        "", "directory.config_and_index", "directory.distributed", "directory.paths", "operations.conversion",
        "operations.stream", "operations.weights",
    },
    ("cli", "storage"): {"locations", "progress", "remote"},
    ("cli", "torch"): {"", "device.engines", "integrations.transformers"},
    ("cli", "sync"): {"", "store"},
}  # fmt: skip


def test_parts_meet_at_their_doors() -> None:
    used: dict[tuple[str, str], set[str]] = {pair: set() for pair in DOORS}
    for module, names in import_graph(PACKAGE.parent, "tensorwire").items():
        for name in names - {"tensorwire"}:
            own, other = module if module == "tensorwire" else layer(module), layer(name)
            if own != other and (other not in GROUND or (own == "tensorwire" and other != "_ground")):
                place = name.removeprefix(f"tensorwire.{other}").removeprefix(".")
                doors = [door for door in DOORS.get((own, other), ()) if place == door or place.startswith(f"{door}.")]
                assert doors, f"{module} imports {name}, which is no door of {other}"
                used[own, other].update(doors)
    assert used == DOORS, "a door without a use is to be closed"


# Modules without a promise, which only these may import.
EXPERIMENTAL: dict[str, set[str]] = {"tensorwire.torch.traffic": set(), "tensorwire.sync.interchange": set()}


def test_the_rest_does_without_what_is_experimental() -> None:
    check_experimental(PACKAGE, EXPERIMENTAL)


# Inside a part: what each of its folders and files may import from the part, besides itself. A name that is not
# listed imports nothing from it.
FOLDERS = {
    "codec": {
        "frame": {"view"},
        "changes": {"frame", "view"},
        "device_blocks": {"frame", "view"},
        "hasher": {"frame", "view"},
        "products": {"frame", "view"},
        "whole": {"frame", "view"},
    },
    "kv": {"codec": {"transposed"}, "lmcache": {"codec"}, "vllm": {"codec", "kept_frames"}},
    "codec/view": {
        "bytes_builder": {"buffers"},
        "arrays": {"buffers", "dtypes"},
        "places": {"arrays"},
    },
    "codec/frame": {
        "layouts": {"core"},
        "facts": {"core", "layouts"},
        "base_check": {"core", "facts", "threads"},
        "form": {"core", "layouts"},
        "chunks": {"base_check", "core", "facts", "form", "layouts", "threads"},
        "relative": {"base_check", "chunks", "core", "facts", "form", "layouts"},
    },
    "storage": {
        "pool": {"background"},
        "store_errors": {"secret_text"},
        "http_objects": {"again", "store_errors"},
        "s3_objects": {"again", "store_errors"},
        "remote": {"http_objects", "s3_objects", "secret_text", "store_errors"},
        "remote_file": {"background", "remote", "store_errors"},
        "access": {"remote"},
        "local": {"access"},
        "locations": {"remote", "secret_text"},
        "readable": {"locations"},
        "inputs": {"local", "locations", "remote_file"},
        "direct": {"local"},
        "staging": {"access", "local"},
        "result": {"progress", "staging"},
        "spool": {"local"},
        "upload": {"background", "local", "locations", "pool", "progress", "remote", "secret_text", "staging"},
    },
    "files": {
        "header": {"names"},
        "given_arrays": {"header", "names"},
        "foreign": {"header"},
        "original_record": {"header"},
        "reader": {"base_content", "foreign", "header", "json_object", "names", "original_record"},
        "base": {"given_arrays", "json_object", "names", "reader"},
        "beside": {"base", "base_content", "json_object", "names", "reader"},
        "files_before": {"base", "base_content", "header", "json_object", "reader"},
        "loader": {"reader"},
        "load_ahead": {"loader", "reader"},
        "frame_file": {"header", "names", "reader"},
        "torch_pickle": {"names", "pickle_stack"},
        "writer": {"base", "base_content", "files_before", "frame_file", "header", "names", "reader"},
        "torch_file": {"beside", "foreign", "header", "names", "original_record", "reader", "torch_pickle", "writer"},
        "original_view": {"header", "names", "original_record", "reader", "torch_file"},
        "original_file": {"original_view"},
        "transfer": {"base", "names", "original_record", "original_view", "reader", "writer"},
    },
    "checkpoint": {
        "bases": {"directory"},
        "tensors": {"bases", "directory"},
        "operations": {"bases", "differences", "directory", "results"},
    },
    "checkpoint/directory": {
        "manifest": {"paths"},
        "config_and_index": {"manifest", "paths"},
        "distributed": {"distributed_pickle", "paths"},
        "shards": {"config_and_index", "distributed", "paths"},
        "sources": {"config_and_index", "distributed", "manifest", "paths"},
        "order": {"manifest", "paths", "sources"},
        "replaceable": {"manifest", "paths", "sources"},
    },
    "checkpoint/tensors": {
        "tensor_slice": {"target"},
        "tensor_reader": {"target", "tensor_slice"},
        "opening": {"target", "tensor_reader"},
        "as_safetensors": {"opening", "tensor_reader", "tensor_slice"},
    },
    "checkpoint/operations": {
        "verification": {"outcome"},
        "weights": {"estimation"},
        "application": {"outcome", "steps"},
        "comparison": {"delta_stats"},
        "converter": {"outcome", "preceding"},
        "conversion": {"converter", "outcome"},
        "replacement": {"converter", "outcome"},
        "state_dict_file": {"distributed_tensors"},
        "distributed_conversion": {"distributed_tensors", "state_dict_file"},
    },
    "safetensors": {"numpy": {"order"}, "torch": {"order", "shared"}},
    "sync": {
        "versions": {"small_files"},
        "new_version": {"versions"},
        "interchange": {"checkpoints", "encodings", "new_version", "versions"},
        "checkpoints": {"versions"},
        "store": {"small_files", "versions"},
        "frames": {"small_files", "store", "versions"},
        "ranks": {"store", "versions"},
        "new_shards": {"small_files", "store", "versions"},
        "copies": {"versions"},
        "elsewhere": {"copies", "frames", "versions"},
        "publisher": {
            "checkpoints", "copies", "elsewhere", "frames", "new_shards", "ranks", "small_files", "store", "versions",
        },
        "followed_arrays": {"checkpoints", "elsewhere", "frames", "versions"},
        "changes": {"followed_arrays", "versions"},
        "directories": {"frames", "small_files", "versions"},
        "follower": {"changes", "directories", "elsewhere", "followed_arrays", "frames", "store", "versions"},
    },
    "sync/directories": {
        "kept": {"making", "note"},
        "shown": {"kept"},
        "beside": {"kept", "shown"},
        "linked": {"beside", "kept", "making", "note", "shown"},
        "in_place": {"beside", "kept", "making", "note", "shown"},
    },
    "cli": {
        "targets": {"options"},
        "plot": {"output"},
        "failures": {"output"},
        "group": {"failures"},
        "program": {"failures"},
        "options": {"hub"},
        "conversion": {"failures", "hub", "options", "output", "targets"},
        "compress": {"conversion", "options", "output"},
        "decompress": {"conversion", "options"},
        "transcode": {"conversion", "options"},
        "convert": {"conversion", "options"},
        "verify": {"failures", "options", "output"},
        "diff": {"failures", "options", "output"},
        "inspect": {"options", "output", "plot"},
        "measure": {"peers"},
        "proof": {"machine"},
        "device": {"machine", "proof"},
        "doctor": {"device", "failures", "machine", "options", "output", "proof"},
        "fitting": {"architecture"},
        "fit": {"architecture", "failures", "fitting", "machine", "options", "output"},
        "bench": {"failures", "machine", "measure", "options", "output", "peers"},
        "generation": {"hub", "output"},
        "run": {"generation", "hub", "options", "output"},
        "completion": {"options", "program"},
        "sync": {"failures", "group", "options", "output"},
    },
    "torch": {
        "products": {"frames"},
        "device": {"frames", "products"},
        "dcp": {"torch_version"},
        "ops": {"frames", "products"},
        "tensors": {"frames", "products", "ops"},
        "modules": {"frames", "products", "ops", "tensors"},
        "layers_ahead": {"frames", "tensors"},
        "loading": {"frames", "tensors", "modules"},
        "prepared": {"device", "frames", "products", "tensors"},
        "offloading": {"frames", "tensors"},
        "integrations": {"frames", "ops", "tensors", "modules", "loading", "prepared"},
        "installed": {"integrations"},
        "traffic": {"device"},
        "__main__": {"installed"},
    },
    "torch/installed": {
        "torch_load": {"look"},
        "safetensors_calls": {"look"},
        "installation": {"diffusers_files", "exchange", "safetensors_calls", "torch_load", "transformers_files"},
    },
    "torch/device": {
        "nvrtc": {"driver"},
        "orders": {"plan"},
        "planned": {"plan"},
        "binaries": {"driver", "nvrtc"},
        "rows": {"orders", "plan"},
        "triton": {"plan", "planned"},
        "cuda_kernels": {"driver", "plan", "planned"},
        "launching": {"driver", "orders", "rows"},
        "nvidia": {"binaries", "driver", "nvrtc"},
        "product_cascades": {"cuda_kernels", "plan", "planned", "rows"},
        "product_rows": {"cuda_kernels", "driver", "plan", "planned", "product_cascades", "rows"},
        "product": {"driver", "launching", "orders", "plan", "product_rows", "rows"},
        "library": {"driver", "orders", "plan", "product", "product_cascades", "product_rows", "rows"},
        "frame": {"cuda_kernels", "driver", "library", "nvidia", "planned", "product", "product_rows", "triton"},
        "engines": {"binaries", "frame", "nvidia", "nvrtc", "triton"},
        "sync": {"frame", "writing"},
        "writing": {"cuda_kernels", "driver", "nvidia", "plan"},
    },
    "torch/device/sync": {"memory": {"copies", "target"}},
    "torch/device/writing": {
        "applying": {"given", "kept", "launch_data", "operands", "status"},
        "hashes": {"launch_data", "operands"},
        "new_frames": {"launch_data", "operands"},
        "encoding": {"given", "kept", "new_frames", "operands"},
        "dense": {"encoding", "new_frames", "operands"},
        "page_tensors": {"given", "operands"},
        "page_writing": {"operands", "page_tensors"},
        "page_reading": {"operands", "page_tensors", "status"},
        "pages": {"given", "operands", "page_reading", "page_writing"},
    },
    "torch/device/triton": {"blocks": {"fields"}, "kernels": {"blocks", "fields"}, "decode": {"fields", "kernels"}},
    "torch/traffic": {
        "codecs": {"arguments"},
        "budget": {"arguments", "codecs"},
        "choice": {"codecs", "counters", "exchange"},
        "collectives": {"codecs", "counters", "exchange"},
        "attach": {"arguments", "budget", "choice", "codecs", "collectives", "counters", "exchange"},
    },
    "torch/traffic/codecs": {"float8": {"grouped"}, "grid": {"grouped"}, "parts": {"codec"}},
    "torch/traffic/attach": {
        "all_to_all": {"attachment"},
        "backend": {"attachment"},
        "ddp": {"attachment"},
        "fsdp": {"attachment"},
    },
}  # fmt: skip


@pytest.mark.parametrize("part", FOLDERS)
def test_folders_import_only_what_they_may(part: str) -> None:
    check_folder(PACKAGE, part, FOLDERS[part])


def test_rooms_of_benchmarks_import_only_what_all_share() -> None:
    """The modules in the root; these import no room, and no room imports another."""
    root = ROOT / "benchmarks"
    for path in sorted(root.rglob("*.py")):
        own = path.relative_to(root).parts[0]
        for name in imported_modules(path, module_name(path, ROOT)):
            room = name.split(".")[1] if name.startswith("benchmarks.") else own
            assert room == own or not (root / room).is_dir(), f"{path.relative_to(ROOT)} imports {name}"


def test_modules_import_each_other_in_no_circle_but_those_listed() -> None:
    found = circles(import_graph(PACKAGE.parent, "tensorwire")) | circles(import_graph(ROOT, "benchmarks"))
    new, gone = found - CIRCLES, CIRCLES - found
    assert not new, f"{new} import each other: move what they share to a module below them"
    assert not gone, f"{gone} no longer import each other: delete their line in CIRCLES"


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    modules = {
        "__init__": "",
        "a": "def late():\n    from package import b\n",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import name\n",
        "c": "import package.a\n",
        "user": "from package.a import late\n",
    }
    (tmp_path / "package").mkdir()
    for name, text in modules.items():
        (tmp_path / "package" / f"{name}.py").write_text(text)
    assert circles(import_graph(tmp_path, "package")) == {("package.a", "package.b", "package.c")}


def test_reference_imports_nothing_of_ours() -> None:
    files = sorted((ROOT / "reference").rglob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module or "")
            assert not [name for name in names if name.split(".")[0] == "tensorwire"], path.relative_to(ROOT)


@pytest.mark.parametrize("folder", INCLUDES)
def test_cpp_includes_go_down(folder: str) -> None:
    files = [path for path in (ROOT / "core" / folder).iterdir() if path.suffix in (".cpp", ".h")]
    assert files
    for path in files:
        for name in cpp_includes(path):
            source = path.relative_to(ROOT)
            if name == "include/tensorwire.h":
                assert folder in ("common", "frame"), f"{source} includes the C ABI"
                continue
            assert (ROOT / "core" / name).is_file(), f'{source}: "{name}" is not a path from core/'
            assert name.split("/")[0] in INCLUDES[folder], f"{source} includes {name}"


def test_kernels_of_a_device_include_only_their_folder() -> None:
    """They are compiled where no header of a system is."""
    folder = PACKAGE / "torch" / "device" / "cuda"
    for path in folder.iterdir():
        included = re.findall(r"^\s*#\s*include\s+(.+)", path.read_text(), re.MULTILINE)
        assert {name.strip('"') for name in included} <= {each.name for each in folder.iterdir()}, path.name


def test_encoder_and_decoder_never_include_each_other() -> None:
    """Not even through a third header."""

    def reach(path: Path, seen: set[Path]) -> set[Path]:
        if path not in seen and path.is_file():
            seen.add(path)
            for name in cpp_includes(path):
                reach(ROOT / "core" / name, seen)
        return seen

    sides = {"encode": "decode", "decode": "encode"}
    checked = 0
    for path in sorted((ROOT / "core").rglob("*")):
        side = next((word for word in sides if word in path.stem), None)
        if path.suffix not in (".cpp", ".h") or side is None or "tests" in path.parts:
            continue
        others = [other.name for other in reach(path, set()) if sides[side] in other.stem]
        assert not others, f"{path.relative_to(ROOT)} includes {others}"
        checked += 1
    assert checked


def test_files_stay_small() -> None:
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if name in LONG or path.suffix in (".csv", ".json", ".svg") or path.suffix not in TEXT:
            continue
        if name.startswith(("tests/golden/", "fuzz/corpus/", "benchmarks/results/", "job/benchmarks/results/")):
            continue
        lines = path.read_text().count("\n")
        assert lines <= MAX_LINES, f"{name} has {lines} lines: make it two files"


def test_readme_is_short() -> None:
    for path in ("README.md", "job/README.md"):
        assert (ROOT / path).read_text().count("\n") < 120


def test_nothing_names_this_machine() -> None:
    home = re.compile(r"(?<![\w.}])/(work|home|root|Users|tmp)/\w")
    for path in tracked_files():
        if path.suffix in TEXT and "golden" not in path.parts and "corpus" not in path.parts:
            found = home.search(path.read_text())
            assert found is None, f"{path.relative_to(ROOT)} holds the path {found and found.group()!r}..."
