"""The table of golden models, one Case per folder. Sizes are small, and often odd on purpose."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    name: str
    family: str  # transformers' model_type
    config: dict
    prompt: int = 32  # tokens of the prompt; longer than the window where there is one
    file_dtype: str = "float32"  # dtype of the weights in the file
    shard_bytes: int = 0  # > 0: sharded save
    fp8: bool = False
    mxfp4: bool = False  # experts of a gpt_oss
    gguf: str = ""  # general.architecture of an additional model.gguf
    # Part of a Hugging Face tensor name -> GGUF type of such matrices: a folder of a GGUF only.
    gguf_types: dict = field(default_factory=dict)
    gguf_split_kv: bool = False  # deepseek2: the newer form, with kv_b in two halves
    further_layer: bool = False  # tensors of a layer beyond the last: a predictor that nothing needs
    # Further spellings of the same config, written beside config.json as config.<key>.json.
    variants: tuple = field(default_factory=tuple)


# fmt: off
_LLAMA = dict(vocab_size=107, hidden_size=48, intermediate_size=60, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
_MOE = dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256)
_QWEN3_MOE = dict(_MOE, head_dim=12, intermediate_size=56, moe_intermediate_size=24,
                  num_experts=7, num_experts_per_tok=3)
_MIXTRAL = dict(_MOE, intermediate_size=34, num_local_experts=4, num_experts_per_tok=2)
_OLMOE = dict(_MOE, intermediate_size=20, num_experts=7, num_experts_per_tok=3)
_GPT_OSS = dict(vocab_size=101, hidden_size=48, intermediate_size=40, num_hidden_layers=4,
                num_attention_heads=6, num_key_value_heads=2, head_dim=12, num_local_experts=6,
                num_experts_per_tok=3, max_position_embeddings=256, sliding_window=9)
_SCALED = dict(_LLAMA, hidden_size=40, head_dim=32, num_attention_heads=2, num_key_value_heads=1,
               intermediate_size=56, vocab_size=97)


_DEEPSEEK = dict(vocab_size=97, max_position_embeddings=256, qk_rope_head_dim=8)
_DEEPSEEK_V2 = dict(_DEEPSEEK, hidden_size=42, intermediate_size=38, num_hidden_layers=2,
                    num_attention_heads=6, num_key_value_heads=6, kv_lora_rank=20, q_lora_rank=None,
                    qk_nope_head_dim=12, v_head_dim=10, moe_intermediate_size=18,
                    n_routed_experts=7, n_shared_experts=2, num_experts_per_tok=3)
_DEEPSEEK_V3 = dict(_DEEPSEEK, hidden_size=40, intermediate_size=70, num_hidden_layers=3,
                    num_attention_heads=6, num_key_value_heads=6, kv_lora_rank=36, q_lora_rank=28,
                    qk_nope_head_dim=10, v_head_dim=14, moe_intermediate_size=34,
                    n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=3,
                    first_k_dense_replace=1, n_group=3, topk_group=2)


def _rope(rope_type, theta, **more):
    return dict(rope_type=rope_type, rope_theta=theta, **more)


CASES = [
    Case("llama_gqa", "llama", dict(_LLAMA, tie_word_embeddings=True, rms_norm_eps=1e-5,
         rope_parameters=_rope("default", 10000.0)), gguf="llama", variants=("v4",)),
    Case("llama_mqa", "llama", dict(_LLAMA, num_key_value_heads=1, vocab_size=97)),
    Case("llama_defaults", "llama", dict(_LLAMA, num_key_value_heads=4, hidden_size=32,
         intermediate_size=80), variants=("v4", "min", "null")),
    Case("llama_head_dim", "llama", dict(_LLAMA, head_dim=20, tie_word_embeddings=True,
         rope_parameters=_rope("default", 500000.0))),
    Case("llama_bias", "llama", dict(_LLAMA, attention_bias=True, mlp_bias=True)),
    Case("llama_odd", "llama", dict(_LLAMA, hidden_size=72, intermediate_size=116, vocab_size=149,
         tie_word_embeddings=True), prompt=41),
    Case("llama_rope_llama3", "llama", dict(_LLAMA, head_dim=16, tie_word_embeddings=True,
         rope_parameters=_rope("llama3", 500.0, factor=8.0, low_freq_factor=1.0,
         high_freq_factor=4.0, original_max_position_embeddings=32)), prompt=48,
         gguf="llama", variants=("v4",)),
    Case("llama_rope_linear", "llama", dict(_SCALED, tie_word_embeddings=True,
         rope_parameters=_rope("linear", 10000.0, factor=4.0)), prompt=40, gguf="llama",
         variants=("v4",)),
    Case("llama_rope_yarn", "llama", dict(_SCALED, max_position_embeddings=128,
         tie_word_embeddings=True, rope_parameters=_rope("yarn", 10000.0, factor=4.0,
         original_max_position_embeddings=32)), prompt=48, gguf="llama", variants=("v4",)),
    Case("llama_rope_yarn_attention", "llama", dict(_SCALED, max_position_embeddings=128,
         rope_parameters=_rope("yarn", 1000.0, factor=8.0, original_max_position_embeddings=16,
         attention_factor=1.25, beta_fast=1.5, beta_slow=0.1)), prompt=40, variants=("v4",)),
    Case("qwen2_rope_yarn_mscale", "qwen2", dict(_SCALED, hidden_size=52, head_dim=None,
         max_position_embeddings=128, rope_parameters=_rope("yarn", 1000.0, factor=4.0,
         original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.707, beta_fast=3.0,
         beta_slow=0.2, truncate=False)), prompt=40),
    Case("llama_sharded", "llama", dict(_LLAMA), shard_bytes=60_000),
    Case("llama_f16", "llama", dict(_LLAMA, tie_word_embeddings=True), file_dtype="float16"),
    Case("llama_bf16", "llama", dict(_LLAMA), file_dtype="bfloat16",
         variants=("v4",)),
    Case("mistral_window", "mistral", dict(_LLAMA, head_dim=16, sliding_window=9), prompt=40,
         variants=("v4",)),
    Case("mistral_full", "mistral", dict(_LLAMA, hidden_size=40, head_dim=None,
         sliding_window=None, tie_word_embeddings=True), prompt=24),
    Case("qwen2_tied", "qwen2", dict(_LLAMA, tie_word_embeddings=True,
         rope_parameters=_rope("default", 1000000.0)), gguf="qwen2", variants=("v4",)),
    Case("qwen2_window", "qwen2", dict(_LLAMA, hidden_size=40, intermediate_size=44,
         num_hidden_layers=4, use_sliding_window=True, sliding_window=7, max_window_layers=2),
         prompt=40, variants=("v4",)),
    Case("qwen2_layer_types", "qwen2", dict(_LLAMA, num_hidden_layers=3, use_sliding_window=True,
         sliding_window=12, layer_types=["sliding_attention", "full_attention",
         "sliding_attention"]), prompt=40),
    Case("qwen3", "qwen3", dict(_LLAMA, head_dim=20, tie_word_embeddings=True,
         rope_parameters=_rope("default", 1000000.0)), gguf="qwen3", variants=("v4",)),
    Case("qwen3_bias_window", "qwen3", dict(_LLAMA, head_dim=16, attention_bias=True,
         use_sliding_window=True, sliding_window=10, max_window_layers=1), prompt=40),
    Case("qwen3_fp8", "qwen3", dict(_LLAMA, hidden_size=152, intermediate_size=184, head_dim=38,
         tie_word_embeddings=True), file_dtype="bfloat16", fp8=True),
    Case("mixtral", "mixtral", dict(_MIXTRAL, rope_parameters=_rope("default", 1000000.0)),
         gguf="llama", variants=("v4", "min")),
    Case("mixtral_window", "mixtral", dict(_MIXTRAL, head_dim=10, sliding_window=11,
         num_local_experts=5, tie_word_embeddings=True), prompt=40),
    Case("qwen3_moe", "qwen3_moe", dict(_QWEN3_MOE, norm_topk_prob=True,
         rope_parameters=_rope("default", 1000000.0)), gguf="qwen3moe", variants=("v4",)),
    Case("qwen3_moe_mixed", "qwen3_moe", dict(_QWEN3_MOE, norm_topk_prob=False,
         num_hidden_layers=6, num_experts=4, mlp_only_layers=[3], decoder_sparse_step=2,
         num_experts_per_tok=2, tie_word_embeddings=True), variants=("v4",)),
    Case("qwen3_moe_window", "qwen3_moe", dict(_QWEN3_MOE, norm_topk_prob=True, head_dim=None,
         use_sliding_window=True, sliding_window=9, attention_bias=True), prompt=40),
    Case("qwen3_moe_bf16", "qwen3_moe", dict(_QWEN3_MOE, norm_topk_prob=True, num_experts=10),
         file_dtype="bfloat16"),
    Case("olmoe", "olmoe", dict(_OLMOE, norm_topk_prob=False, num_key_value_heads=4),
         gguf="olmoe", variants=("v4",)),
    Case("olmoe_clip", "olmoe", dict(_OLMOE, norm_topk_prob=True, clip_qkv=0.9), prompt=36,
         variants=("v4",)),
    Case("deepseek_v2", "deepseek_v2", dict(_DEEPSEEK_V2), gguf="deepseek2",
         variants=("v4", "null")),
    Case("deepseek_v2_group", "deepseek_v2", dict(_DEEPSEEK_V2, hidden_size=56, q_lora_rank=28,
         num_attention_heads=7, num_key_value_heads=7, num_hidden_layers=3, n_routed_experts=12,
         first_k_dense_replace=1, n_group=4, topk_group=2, num_experts_per_tok=4, v_head_dim=12,
         topk_method="group_limited_greedy", routed_scaling_factor=3.5, attention_bias=True,
         rope_parameters=_rope("yarn", 1000.0, factor=4.0, original_max_position_embeddings=32,
         mscale=1.0, mscale_all_dim=0.707, beta_fast=3.0, beta_slow=0.2)), prompt=40,
         variants=("v4",)),
    Case("deepseek_v3", "deepseek_v3", dict(_DEEPSEEK_V3, num_hidden_layers=2,
         rope_parameters=_rope("yarn", 10000.0, factor=8.0, original_max_position_embeddings=32,
         mscale=1.0, mscale_all_dim=1.0)), prompt=40, further_layer=True, gguf="deepseek2",
         gguf_split_kv=True, variants=("v4",)),
    Case("deepseek_v3_plain", "deepseek_v3", dict(_DEEPSEEK_V3, q_lora_rank=None, hidden_size=36,
         num_attention_heads=4, num_key_value_heads=4, n_routed_experts=5, num_experts_per_tok=5,
         n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0,
         n_shared_experts=2, rope_interleave=False, attention_bias=True, num_hidden_layers=2,
         tie_word_embeddings=True)),
    Case("deepseek_v3_bf16", "deepseek_v3", dict(_DEEPSEEK_V3, num_attention_heads=5,
         num_key_value_heads=5), file_dtype="bfloat16"),
    Case("deepseek_v3_fp8", "deepseek_v3", dict(_DEEPSEEK_V3, hidden_size=152,
         intermediate_size=136, kv_lora_rank=40, q_lora_rank=44, qk_nope_head_dim=24,
         v_head_dim=16, moe_intermediate_size=40, n_routed_experts=6, num_hidden_layers=2),
         file_dtype="bfloat16", fp8=True),
    Case("gpt_oss", "gpt_oss", dict(_GPT_OSS, swiglu_limit=1.0, rope_parameters=_rope("yarn", 150000.0,
         factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64,
         truncate=False)), prompt=40, variants=("v4",)),
    Case("gpt_oss_bf16", "gpt_oss", dict(_GPT_OSS, hidden_size=32, intermediate_size=24,
         num_attention_heads=4, head_dim=64, num_hidden_layers=3, num_local_experts=5,
         sliding_window=13, swiglu_alpha=1.3, attention_bias=False, tie_word_embeddings=True,
         layer_types=["full_attention", "sliding_attention", "sliding_attention"]), prompt=40,
         file_dtype="bfloat16"),
    Case("gpt_oss_mxfp4", "gpt_oss", dict(_GPT_OSS, hidden_size=64, intermediate_size=96,
         num_hidden_layers=2, num_local_experts=5, head_dim=16), prompt=40,
         file_dtype="bfloat16", mxfp4=True, gguf="gpt-oss", variants=("v4",)),
    Case("llama_gguf_q32", "llama", dict(_LLAMA, hidden_size=64, intermediate_size=96),
         gguf="llama", gguf_types={"embed": "Q8_0", "lm_head": "Q5_0", "q_proj": "Q4_0",
         "k_proj": "F16", "v_proj": "Q5_1", "o_proj": "Q4_1", "gate_proj": "BF16",
         "up_proj": "Q4_0", "down_proj": "Q8_0"}),
    Case("llama_gguf_k", "llama", dict(_LLAMA, hidden_size=256, intermediate_size=256,
         num_key_value_heads=1, num_hidden_layers=1, tie_word_embeddings=True), gguf="llama",
         gguf_types={"embed": "Q6_K", "q_proj": "Q4_K", "k_proj": "Q5_K", "v_proj": "Q6_K",
         "o_proj": "Q4_K", "gate_proj": "Q4_K", "up_proj": "Q5_K", "down_proj": "Q6_K"}),
    Case("mixtral_gguf_q32", "mixtral", dict(_MIXTRAL, hidden_size=64, intermediate_size=32),
         gguf="llama", gguf_types={"gate.weight": "F32", "gate_up_proj": "Q4_1",
         "experts.down_proj": "Q5_0", "q_proj": "Q5_1", "k_proj": "Q8_0", "v_proj": "Q4_0",
         "o_proj": "Q8_0", "embed": "Q4_0", "lm_head": "Q8_0"}),
]
# fmt: on
