"""What llama.cpp's architecture deepseek2 adds: its metadata, and the tensors that have no twin by name.

Two ages of files: those that hold kv_b as it is, and those that hold its halves, K's transposed. A case with
`gguf_split_kv` has the second.
"""

import gguf
import numpy as np

LAYER_NAMES = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}


def parts_of(case, config, rest, value):
    """Tensors of a layer for the parameter `rest` of it; None: it goes by the common names."""
    if rest.endswith("e_score_correction_bias"):
        return {"exp_probs_b.bias": value}
    if not rest.endswith("kv_b_proj.weight"):
        return None
    if not case.gguf_split_kv:
        return {"attn_kv_b.weight": value}
    heads, nope = config.num_attention_heads, config.qk_nope_head_dim
    whole = value[0].reshape(heads, nope + config.v_head_dim, config.kv_lora_rank)
    keys = np.ascontiguousarray(whole[:, :nope].swapaxes(1, 2))
    return {"attn_k_b.weight": (keys, None), "attn_v_b.weight": (whole[:, nope:], None)}


def add_heads(writer, case, config):
    head = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    if not case.gguf_split_kv:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head)
        writer.add_value_length(config.v_head_dim)
        return
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(head)
    writer.add_value_length_mla(config.v_head_dim)


def add_experts(writer, config):
    v3 = config.model_type == "deepseek_v3"
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(bool(v3 and config.norm_topk_prob))
    kind = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kind.SIGMOID if v3 else kind.SOFTMAX)
    if v3:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def add_rope(writer, config):
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])
