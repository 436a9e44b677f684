"""Runs vLLM with the weight transfer engine, case by case in one process: ``python -m THIS CASES RESULTS``.

CASES is a JSON object: name -> {"model": ..., "steps": [...], "as_on_gpu": ..., other arguments of ``vllm.LLM``}. A
step is {"init": info}, {"update": version}, {"reload": checkpoint} or {"shutdown": null}, and may name a fault that is
put in. With "publish", the folder of a version is put into the store first, [from, to]; with "staged" the step begins
once the thread has staged its version. RESULTS gets for each case what was generated
before the steps, and for each step its error, the tensors that went to the model, how long it took, and what was
generated behind it; nothing where "silent" is set, since vLLM ends with a request to a model that is half written.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.vllm_cases import SETTINGS, generate
from tests.support.waiting import wait_for

WHOLE = ("stage", "commit", "undo")
"""Faults before anything is written."""
HALF = ("begin", "begin midway", "load", "convert", "copy", "end", "end midway")
"""Faults behind that, in the order in which an update comes to them."""
DIED = 7
"""The exit code of a process that the fault "die" has ended."""

_RELOAD = "vllm.model_executor.model_loader.reload.layerwise"
_LINEAR = "vllm.model_executor.layers.linear.UnquantizedLinearMethod"
_OURS = "tensorwire.torch.integrations.vllm_weights"
_PLACES = {
    "stage": ("tensorwire.sync.Follower.stage", 0),
    "commit": ("tensorwire.sync.Follower.commit", 0),
    "undo": (f"{_OURS}.undo_begun_reload", 0),
    "begin": (f"{_OURS}.initialize_layerwise_reload", 0),
    "begin midway": (f"{_RELOAD}.initialize_online_processing", 9),
    "convert": (f"{_LINEAR}.process_weights_after_loading", 3),
    "copy": (f"{_RELOAD}._place_kernel_tensors", 4),
    "end": (f"{_OURS}.finalize_layerwise_reload", 0),
    "end midway": (f"{_RELOAD}._finalize_attention_layer", 1),
}
"""By fault what is called, and after how many calls it fails. "load" and "die" come after a few tensors."""


class FaultError(Exception):
    pass


@contextmanager
def put_in(fault: str) -> Iterator[None]:
    place, count = _PLACES[fault]
    module, _, name = place.rpartition(".")
    own, calls = getattr(pkgutil.resolve_name(module), name), [0]

    def failing(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] > count:
            raise FaultError(fault)
        return own(*arguments, **options)

    with mock.patch(place, failing):
        yield


def unpacked() -> Any:
    """Weights stay as they are loaded, as on a GPU: with `as_cuda` a double of one, which computes on the CPU."""

    def plain(layer: Any, remove_weight: bool) -> None:
        import torch

        layer.cpu_linear = torch.nn.functional.linear

    return mock.patch("vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm", plain)


def as_cuda() -> Any:
    return mock.patch("vllm.platforms.current_platform.is_cuda_alike", return_value=True)


def worker(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker


@contextmanager
def watched(llm: Any, fault: str | None) -> Iterator[list[str]]:
    """The tensors that the model is given."""
    model = worker(llm).model_runner.model
    own, names = model.load_weights, []

    def load(weights: Any) -> Any:
        return own(passed(weights))

    def passed(weights: Any) -> Iterator[Any]:
        for name, tensor in weights:
            names.append(name)
            yield name, tensor
            if fault == "die" and len(names) == 9:
                os._exit(DIED)
            if fault == "load" and len(names) == 9:
                raise FaultError(fault)

    with mock.patch.object(model, "load_weights", load):
        yield names


def update(llm: Any, version: Any) -> None:
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": version}})
    llm.finish_weight_update(str(version))


def act(llm: Any, step: dict[str, Any]) -> None:
    if "init" in step:
        llm.init_weight_transfer_engine({"init_info": step["init"]})
    elif "reload" in step:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": step["reload"]})
    elif "shutdown" in step:
        llm.shutdown_weight_transfer_engine()
    else:
        update(llm, step["update"])


def take(llm: Any, step: dict[str, Any], double: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"error": None}
    fault = step.get("fault")
    if "publish" in step:
        source, place = map(Path, step["publish"])
        shutil.copytree(source, place.with_name(f".{place.name}")).rename(place)
    if step.get("staged"):
        follower = worker(llm).weight_transfer_engine._ahead._follower
        wait_for(lambda: follower._staged is not None and follower._staged.version == step["update"])
    with ExitStack() as stack:
        names = stack.enter_context(watched(llm, fault))
        stack.enter_context(put_in(fault) if fault in _PLACES else nullcontext())
        stack.enter_context(as_cuda() if double and "init" in step else nullcontext())
        start = time.perf_counter()
        try:
            act(llm, step)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        result["seconds"] = time.perf_counter() - start
    result["names"], result["version"] = names, llm.get_weight_version()
    if not step.get("silent"):
        llm.reset_prefix_cache()
        result |= generate(llm)
    return result


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = None
    steps, double = arguments.pop("steps"), arguments.pop("as_on_gpu", False)
    try:
        with unpacked() if double else nullcontext():
            llm = LLM(**SETTINGS | {"weight_transfer_config": {"backend": "tensorwire"}} | arguments)
        return {**generate(llm), "steps": [take(llm, step, double) for step in steps]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def main(cases: str, results: str) -> None:
    outcomes = {name: run(arguments) for name, arguments in json.loads(Path(cases).read_text()).items()}
    Path(results).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
