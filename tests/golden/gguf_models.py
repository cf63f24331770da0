"""The same weights in a GGUF file, with the names, metadata and row order that llama.cpp reads."""

import gguf
import numpy as np

import gguf_deepseek

# What llama.cpp calls a tensor of a Hugging Face model; {i} is the layer.
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    **gguf_deepseek.LAYER_NAMES,
}
GPT_OSS_LAYER_NAMES = {
    **LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}


def head_dim(config):
    explicit = getattr(config, "head_dim", None)
    return explicit or config.hidden_size // config.num_attention_heads


def interleave(rows, heads):
    """Rows of q or k of arch llama: rotation pairs (i, i + d/2) become neighbours."""
    shape = rows.shape
    pairs = rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return pairs.swapaxes(1, 2).reshape(shape)


def deinterleave(rows, heads):
    """Inverse of interleave."""
    shape = rows.shape
    pairs = rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
    return pairs.swapaxes(1, 2).reshape(shape)


def heads_to_interleave(case, config, name):
    """Heads whose rows arch llama interleaves in this tensor; 0 for none."""
    if case.gguf != "llama":
        return 0
    if ".q_proj." in name:
        return config.num_attention_heads
    if ".k_proj." in name:
        return config.num_key_value_heads
    return 0


def expert_tensors(gate_up, down):
    """Of (values, type) of the stacked experts as transformers holds them."""
    gate, up = np.split(gate_up[0], 2, axis=1)
    return {
        "ffn_gate_exps.weight": (gate, gate_up[1]),
        "ffn_up_exps.weight": (up, gate_up[1]),
        "ffn_down_exps.weight": down,
    }


def gpt_oss_expert_tensors(case, state, prefix):
    """Gate and up apart, rows of inputs; values of MXFP4 are exact in blocks of GGUF too."""
    gate_up, down = (state[prefix + k][0].swapaxes(1, 2) for k in ("gate_up_proj", "down_proj"))
    bias, down_bias = (state[prefix + k][0] for k in ("gate_up_proj_bias", "down_proj_bias"))
    qtype = gguf.GGMLQuantizationType.MXFP4 if case.mxfp4 else None

    def stored(rows):
        if qtype is None:
            return rows, None
        raw = gguf.quantize(np.ascontiguousarray(rows), qtype)
        if not np.array_equal(gguf.dequantize(raw, qtype).reshape(rows.shape), rows):
            raise RuntimeError(f"{prefix}: not exact in {qtype.name}")
        return raw, qtype

    return {
        "ffn_gate_exps.weight": stored(gate_up[:, 0::2]),
        "ffn_up_exps.weight": stored(gate_up[:, 1::2]),
        "ffn_down_exps.weight": stored(down),
        "ffn_gate_exps.bias": (bias[:, 0::2], None),
        "ffn_up_exps.bias": (bias[:, 1::2], None),
        "ffn_down_exps.bias": (down_bias, None),
    }


def model_state(case, model, stored):
    """(values or raw bytes, GGUF type) by Hugging Face name, rows in GGUF order."""
    state = {}
    for name, value in model.state_dict().items():
        value = value.float().numpy()
        heads = heads_to_interleave(case, model.config, name)
        state[name] = (interleave(value, heads) if heads else value, None)
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return {**state, **stored}


def model_tensors(case, model, stored):
    state = model_state(case, model, {} if case.mxfp4 else stored)
    gpt_oss = case.gguf == "gpt-oss"
    names = GPT_OSS_LAYER_NAMES if gpt_oss else LAYER_NAMES
    out = {}
    for name, value in state.items():
        if name in NAMES:
            out[NAMES[name]] = value
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        if rest == "self_attn.sinks":
            parts = {"attn_sinks.weight": value}
        elif gpt_oss and rest == "mlp.experts.gate_up_proj":
            parts = gpt_oss_expert_tensors(case, state, name.removesuffix("gate_up_proj"))
        elif gpt_oss and rest.startswith("mlp.experts."):
            continue
        elif rest.endswith("experts.gate_up_proj"):
            down = state[name.replace("gate_up_proj", "down_proj")]
            parts = expert_tensors(value, down)
        elif rest.endswith("experts.down_proj"):
            continue
        elif own := gguf_deepseek.parts_of(case, model.config, rest, value):
            parts = own
        else:
            module, kind = rest.rsplit(".", 1)
            parts = {f"{names[module]}.{kind}": value}
        out.update({f"blk.{layer}.{part}": v for part, v in parts.items()})
    return out


def llama3_factors(config):
    """Divisors of the inverse frequencies: how llama.cpp files say rope_type llama3."""
    rope = config.rope_parameters
    dim = head_dim(config)
    wavelength = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((context / wavelength - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def add_rope(writer, config):
    rope = config.rope_parameters
    writer.add_rope_dimension_count(head_dim(config))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.model_type.startswith("deepseek"):
        gguf_deepseek.add_rope(writer, config)


def add_experts(writer, case, config):
    if not hasattr(config, "num_experts_per_tok"):
        return
    if case.gguf == "deepseek2":
        return gguf_deepseek.add_experts(writer, config)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if case.gguf == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if case.gguf == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_sliding_window(config.sliding_window)


def add_metadata(writer, case, config):
    writer.add_name(case.name)
    mixed = case.gguf_types or case.mxfp4
    writer.add_file_type(gguf.LlamaFileType.GUESSED if mixed else gguf.LlamaFileType.ALL_F32)
    if mixed:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if case.gguf == "deepseek2":
        gguf_deepseek.add_heads(writer, case, config)
    else:
        add_heads(writer, config)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("none")


def add_heads(writer, config):
    writer.add_head_count_kv(config.num_key_value_heads)
    if head_dim(config) * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim(config))
        writer.add_value_length(head_dim(config))


def write(case, model, stored, path):
    """`stored`: (raw bytes, type) by Hugging Face name for what is not simply F32."""
    writer = gguf.GGUFWriter(path, case.gguf)
    add_metadata(writer, case, model.config)
    add_rope(writer, model.config)
    add_experts(writer, case, model.config)
    for name, (value, qtype) in model_tensors(case, model, stored).items():
        writer.add_tensor(name, np.ascontiguousarray(value), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
