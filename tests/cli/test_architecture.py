"""Key-value caches and weights of known models, from what their config.json says; figures were computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tensorwire.cli.architecture import Layers, cache_of, num_weights

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
MISTRAL_7B = {**LLAMA_3_8B, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000,
              "sliding_window": 4096, "max_position_embeddings": 32768}  # fmt: skip
QWEN_2_5_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 131072, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "max_window_layers": 28, "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": False,
    "vocab_size": 152064,
}  # fmt: skip
MIXTRAL_8X7B = {**MISTRAL_7B, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None,
                "num_local_experts": 8}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "n_routed_experts": 256, "n_shared_experts": 1, "tie_word_embeddings": False, "vocab_size": 129280,
    "max_position_embeddings": 163840,
}  # fmt: skip
GEMMA_2_9B = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
    "head_dim": 256, "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
    "sliding_window": 4096, "vocab_size": 256000, "max_position_embeddings": 8192,
}  # fmt: skip
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072,
}  # fmt: skip
GPT_2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12,
         "n_positions": 1024}  # fmt: skip
FALCON_7B = {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 4544, "multi_query": True,
             "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "nbytes"),
    [
        (LLAMA_3_8B, 131_072),  # 2 x 8 heads x 128 x 32 layers x 2 bytes
        (QWEN_2_5_7B, 57_344),  # 2 x 4 x 128 x 28 x 2; a window that is not used
        (MIXTRAL_8X7B, 131_072),  # experts keep nothing
        (DEEPSEEK_V3, 70_272),  # (512 + 64) x 61 x 2; 128 heads of 192 and 128 would be 4,997,120
        (GPT_2, 36_864),  # 2 x 12 x 64 x 12 x 2; no grouped heads
        (FALCON_7B, 8_192),  # 2 x 1 x 64 x 32 x 2; one head of keys
    ],
    ids=["llama", "qwen", "mixtral", "deepseek", "gpt2", "falcon"],
)
def test_bytes_of_a_token(config: dict[str, Any], nbytes: int) -> None:
    cache = cache_of(config)
    assert 2 * cache.numel_per_token == nbytes
    assert cache.nbytes(1000, 3, 2) == 3000 * nbytes
    assert cache.latent == (config is DEEPSEEK_V3)
    assert cache.limit == config.get("max_position_embeddings", config.get("n_positions"))


def test_a_window_bounds_the_cache() -> None:
    cache = cache_of(MISTRAL_7B)
    assert cache.layers == (Layers(32, 2048, 4096),)
    assert cache.nbytes(4095, 1, 2) == 4095 * 131_072
    assert cache.nbytes(4096, 1, 2) == cache.nbytes(32_768, 1, 2) == 4096 * 131_072
    assert cache.longest(4096 * 131_072, 1, 2) is None, "every context fits"
    assert cache.longest(4096 * 131_072 - 1, 1, 2) == 4095


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (GEMMA_2_9B, (Layers(21, 4096), Layers(21, 4096, 4096))),
        (GPT_OSS_20B, (Layers(12, 1024), Layers(12, 1024, 128))),
        ({**QWEN_2_5_7B, "use_sliding_window": True, "max_window_layers": 20, "sliding_window": 1000},
         (Layers(20, 1024), Layers(8, 1024, 1000))),
        ({**QWEN_2_5_7B, "layer_types": None}, (Layers(28, 1024),)),
        ({**LLAMA_3_8B, "layer_types": ["chunked_attention"] * 3 + ["full_attention"] * 29,
          "attention_chunk_size": 8192}, (Layers(29, 2048), Layers(3, 2048, 8192))),
        ({**LLAMA_3_8B, "num_kv_shared_layers": 12}, (Layers(20, 2048),)),
        ({"architectures": ["Gemma3ForConditionalGeneration"],
          "text_config": {**GEMMA_2_9B, "model_type": "gemma3_text", "sliding_window_pattern": 6}},
         (Layers(7, 4096), Layers(35, 4096, 4096))),
    ],
    ids=["gemma2", "gpt-oss", "qwen", "unused", "llama4", "shared", "gemma3"],
)  # fmt: skip
def test_layers_of_two_kinds(config: dict[str, Any], layers: tuple[Layers, ...]) -> None:
    cache = cache_of(config)
    assert cache.layers == layers
    # Every context that is named longest fits, and one more token does not.
    for room in (0, 10**6, 10**9, 10**10):
        for batch, value_nbytes in ((1, 2), (4, 1)):
            longest = cache.longest(room, batch, value_nbytes)
            assert longest is not None
            assert cache.nbytes(longest, batch, value_nbytes) <= room < cache.nbytes(longest + 1, batch, value_nbytes)


def test_no_layer_keeps_a_cache_where_all_read_those_of_others() -> None:
    cache = cache_of({**LLAMA_3_8B, "num_kv_shared_layers": 33})
    assert cache.layers == ()
    assert cache.longest(0, 1, 2) is None


def test_no_room_is_no_context() -> None:
    assert cache_of(LLAMA_3_8B).longest(-1, 1, 2) == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "of a BertForMaskedLM, which does not continue text"),
        ({"is_encoder_decoder": True}, "an encoder with a decoder"),
        ({**LLAMA_3_8B, "num_attention_heads": None}, "does not say num_attention_heads"),
        ({**LLAMA_3_8B, "num_hidden_layers": 0}, "num_hidden_layers 0, expected a number of 1 or more"),
        ({**LLAMA_3_8B, "num_hidden_layers": "32"}, "num_hidden_layers '32'"),
        ({**LLAMA_3_8B, "layer_types": ["linear_attention"] * 32}, "layers of type 'linear_attention'"),
        ({**LLAMA_3_8B, "layer_types": ["full_attention"]}, "1 layer_types for 32 layers"),
        ({**LLAMA_3_8B, "mamba_d_state": 16}, "has mamba_d_state"),
        (
            {**LLAMA_3_8B, "num_hidden_layers": 10**9},
            "num_hidden_layers 1000000000, expected a number of 65,536 or less",
        ),
        ({**LLAMA_3_8B, "hidden_size": 10**400}, r"hidden_size 10+\.\.\.0+, expected a number of [\d,]+ or less"),
        ({**LLAMA_3_8B, "num_hidden_layers": "x" * 10_000}, "num_hidden_layers .{,40}, expected a number"),
        ({**LLAMA_3_8B, "layer_types": [[1]] * 32}, r"layers of type \[1\]"),
    ],
)
def test_what_is_not_known_is_said(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cache_of(config)


@pytest.mark.parametrize(
    ("config", "numel", "largest"),
    [
        (LLAMA_3_8B, 8_030_261_248, 525_336_576),  # as the model card counts; 128256 x 4096
        (MISTRAL_7B, 7_241_732_096, 131_072_000),
        (MIXTRAL_8X7B, 46_702_792_704, 131_072_000),
        # Layer: q 7168 x 1536 + 1536 x 24576, kv 7168 x 576 + 512 x 32768, out 16384 x 7168: 187,105,280. Three of 61
        # have 3 x 7168 x 18432; the others 257 experts of 3 x 7168 x 2048 and a gate of 7168 x 256.
        (DEEPSEEK_V3, 671_026_279_424, 926_679_040),
        # Tied. Layer: 2 x 3584 x 256 x 24 + 3 x 3584 x 14336; 85 norms of 3584.
        (GEMMA_2_9B, 9_241_404_928, 917_504_000),
    ],
    ids=["llama", "mistral", "mixtral", "deepseek", "gemma2"],
)
def test_number_of_weights(config: dict[str, Any], numel: int, largest: int) -> None:
    assert num_weights(config) == (numel, largest)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT_OSS_20B, "model_type 'gpt_oss', whose weights are not known here"),
        ({**MIXTRAL_8X7B, "mlp_only_layers": [3]}, "which layers have experts in a way that is not known here"),
        ({**LLAMA_3_8B, "vocab_size": None}, "does not say vocab_size"),
        ({**LLAMA_3_8B, "vocab_size": 10**30}, "vocab_size 1.*0, expected a number of 1,099,511,627,776 or less"),
        ({**LLAMA_3_8B, "model_type": ["llama"]}, r"model_type \['llama'\], whose weights are not known here"),
    ],
)
def test_weights_that_are_not_known(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        num_weights(config)


def test_more_dense_layers_than_layers() -> None:
    """Sizes do not become negative."""
    all_dense = {**DEEPSEEK_V3, "first_k_dense_replace": DEEPSEEK_V3["num_hidden_layers"]}
    assert num_weights({**DEEPSEEK_V3, "first_k_dense_replace": 1 << 30}) == num_weights(all_dense)
