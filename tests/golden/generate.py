"""Writes the golden models and what Hugging Face transformers computes from them.

    python generate.py              every case, and quant/
    python generate.py llama_gqa    some cases only

The seed of a case is taken from its name; see README.md for what each folder holds.
"""

import argparse
import json
import logging
import os
import pathlib
import shutil
import sys
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

import fp8
import gguf_models
import gguf_quantized
import mxfp4
import quant_fixtures
import routing
from cases import CASES

HERE = pathlib.Path(__file__).resolve().parent
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
GREEDY_STEPS = 64
MIN_MARGIN = 2e-3  # between the two best logits of every greedy step
MIN_ROUTE_MARGIN = 1e-3  # between the router logits of the last expert taken and the first left
MIN_SLOT_MARGIN = 2e-4  # between router logits of neighbouring slots
MIN_DISTINCT = 12  # different tokens among the greedy ones
MAX_ATTEMPTS = 200


# The same between the scores that DeepSeek compares: of experts, and of groups of experts.
MIN_SCORE_MARGIN = 5e-5
MIN_SCORE_SLOT_MARGIN = 1e-5


def make_config(case):
    config_class = transformers.CONFIG_MAPPING[case.family]
    values = {k: v for k, v in case.config.items() if not (k == "head_dim" and v is None)}
    return config_class(**values, pad_token_id=None, bos_token_id=1, eos_token_id=2)


def make_model(config, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, **EAGER
    )
    return model.eval()


def init_weights(model, seed):
    """Random weights that give logits of rms 1-2 and attention that looks at several tokens."""
    generator = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter.shape[-1]
        if model.config.model_type == "gpt_oss" and parameter.dim() == 3:
            fan_in = parameter.shape[-2]  # experts stand the other way round there
        if name.endswith("sinks"):
            value = 1.5 + noise  # about half of the attention of a short window
        elif "norm" in name:
            value = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif "embed_tokens" in name:
            value = noise * (1.6 / fan_in**0.5 if tied else 0.05)  # small: rms_norm_eps must show
        elif "lm_head" in name:
            value = noise * 1.6 / fan_in**0.5
        elif name.endswith(("gate.weight", "router.weight")):
            value = noise * 2.0 / fan_in**0.5
        else:
            value = noise * 1.4 / fan_in**0.5
        with torch.no_grad():
            parameter.copy_(value.to(parameter.dtype))
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):  # large enough to turn scores negative
            buffer.copy_((0.4 * torch.randn(buffer.shape, generator=generator) - 0.3).bfloat16())


def routers(model):
    return [m for _, m in model.named_modules() if routing.is_router(m)]


@torch.no_grad()
def run(model, tokens):
    """Returns logits [tokens, vocab] and (router logits, weights, experts) of each sparse layer."""
    seen = []
    hooks = [
        r.register_forward_hook(lambda r, _in, out: seen.append(routing.in_order(r, out)))
        for r in routers(model)
    ]
    logits = model(input_ids=tokens[None].long(), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, seen


@torch.no_grad()
def greedy(model, prompt):
    """Recomputes everything for each token: no cache takes part in the reference."""
    tokens = prompt
    for _ in range(GREEDY_STEPS):
        logits = model(input_ids=tokens[None].long(), use_cache=False).logits[0, -1]
        tokens = torch.cat([tokens, logits.argmax()[None].to(tokens.dtype)])
    return tokens


def well_separated(model, tokens, prompt_length):
    """True if no rounding error of a sound f32 engine changes a token or a route."""
    logits, seen = run(model, tokens)
    best = logits[prompt_length - 1 : -1].topk(2, dim=-1).values
    if (best[:, 0] - best[:, 1]).min() < MIN_MARGIN:
        return False
    if tokens[prompt_length:].unique().numel() < MIN_DISTINCT:
        return False
    return routes_separated(model, seen)


def routes_separated(model, seen):
    for router, (router_logits, _, experts) in zip(routers(model), seen):
        if routing.is_deepseek(router):
            cut, slots, groups = routing.margins(router, router_logits)
            if min(cut, groups) < MIN_SCORE_MARGIN or slots < MIN_SCORE_SLOT_MARGIN:
                return False
            continue
        gaps = -router_logits.float().sort(dim=-1, descending=True).values.diff(dim=-1)
        top_k = experts.shape[-1]
        if gaps[:, top_k - 1].min() < MIN_ROUTE_MARGIN:
            return False
        if gaps[:, : top_k - 1].min() < MIN_SLOT_MARGIN:
            return False
    return True


def quantize(case, model, seed):
    """Replaces weights by what their stored form means; returns that form."""
    if case.fp8:
        return fp8.quantize_model(model, seed)
    if case.mxfp4:
        return mxfp4.quantize_model(model, seed)
    if case.gguf_types:
        return gguf_quantized.quantize_model(case, model, seed)
    return {}


def find_model(case):
    """Tries seeds until the f32 model of the rounded weights has no near ties."""
    base = zlib.crc32(case.name.encode())
    file_dtype = getattr(torch, case.file_dtype)
    model = make_model(make_config(case))
    for attempt in range(MAX_ATTEMPTS):
        seed = (base + attempt) % 2**31
        init_weights(model, seed)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(file_dtype).float()
        stored = quantize(case, model, seed)
        generator = torch.Generator().manual_seed(seed + 1)
        prompt = torch.randint(3, case.config["vocab_size"], (case.prompt,), generator=generator)
        if not routes_separated(model, run(model, prompt)[1]):
            continue  # a prompt alone is soon computed
        tokens = greedy(model, prompt.int())
        if well_separated(model, tokens, case.prompt):
            return model, stored, tokens, attempt
    raise RuntimeError(f"{case.name}: no seed without near ties")


def save_model(case, model, stored, folder):
    file_dtype = getattr(torch, case.file_dtype)
    model.config.dtype = file_dtype
    saved = make_model(model.config, file_dtype)
    saved.load_state_dict({k: v.to(file_dtype) for k, v in model.state_dict().items()})
    size = {"max_shard_size": case.shard_bytes} if case.shard_bytes else {}
    saved.save_pretrained(folder, **size)
    if case.fp8:
        fp8.rewrite_folder(folder, stored)
    if case.further_layer:
        add_further_layer(model.config, folder)
    if case.mxfp4:
        mxfp4.rewrite_folder(folder, stored)
    return saved


def add_further_layer(config, folder):
    """Some of what a multi-token predictor has, as published files name it."""
    path = folder / "model.safetensors"
    prefix = f"model.layers.{config.num_hidden_layers}."
    tensors = load_file(path)
    tensors[prefix + "enorm.weight"] = torch.ones(config.hidden_size)
    tensors[prefix + "eh_proj.weight"] = torch.ones(config.hidden_size, 2 * config.hidden_size)
    save_file(tensors, path, metadata={"format": "pt"})


def forced_run(model, tokens, seen):
    """A run whose routers take the experts of an earlier one, with their own weights for them."""
    hooks = []
    for router, (_, _, experts) in zip(routers(model), seen):

        def force(module, _inputs, out, experts=experts):
            weights = routing.weights_of(module, out[0], experts)
            return out[0], weights.to(out[1].dtype), experts

        hooks.append(router.register_forward_hook(force))
    logits, _ = run(model, tokens)
    for hook in hooks:
        hook.remove()
    return logits


def save_expected(case, model, saved, tokens, folder):
    prompt = tokens[: case.prompt]
    logits, seen = run(model, prompt)
    expected = {"tokens": prompt, "logits": logits, "greedy": tokens[case.prompt :].clone()}
    if seen:
        expected["routes"] = torch.stack([experts for _, _, experts in seen]).int()
        expected["route_weights"] = torch.stack([weights for _, weights, _ in seen]).float()
    if case.file_dtype == "bfloat16" and not case.fp8:
        expected["logits_bf16"] = forced_run(saved, prompt, seen).float()
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
    return logits


def v4_config(values):
    """The spelling of transformers 4: what published checkpoints have."""
    out = {k: v for k, v in values.items() if k not in ("rope_parameters", "dtype", "layer_types")}
    rope = dict(values["rope_parameters"])
    out["rope_theta"] = rope.pop("rope_theta")
    rope_type = rope.pop("rope_type")
    key = "rope_type" if rope_type == "llama3" else "type"
    out["rope_scaling"] = None if rope_type == "default" else {key: rope_type, **rope}
    out["torch_dtype"] = values["dtype"]
    if values["model_type"].startswith("deepseek"):
        v3 = values["model_type"] == "deepseek_v3"
        out.pop("head_dim")
        out.pop("qk_head_dim")
        out |= dict(scoring_func="sigmoid" if v3 else "softmax", moe_layer_freq=1, ep_size=1,
                    seq_aux=True, aux_loss_alpha=0.001)  # fmt: skip
        if v3:
            out["topk_method"] = "noaux_tc"
            out.pop("rope_interleave")
    if values["model_type"] == "qwen3_moe":
        out["num_experts"] = out.pop("num_local_experts")
    out["transformers_version"] = "4.46.0"
    return dict(sorted(out.items()))


def minimal_config(values):
    """Only what the family's defaults do not say."""
    keys = ["model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size",
            "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]  # fmt: skip
    if values["model_type"] == "mixtral":
        keys += ["num_key_value_heads", "num_local_experts", "num_experts_per_tok"]
    return {k: values[k] for k in keys}


def null_config(values):
    nulls = ["head_dim", "num_key_value_heads", "rope_scaling", "pad_token_id", "sliding_window",
             "quantization_config", "layer_types"]  # fmt: skip
    return {**v4_config(values), **dict.fromkeys(nulls)}


VARIANTS = {"v4": v4_config, "min": minimal_config, "null": null_config}


def save_variants(case, model, tokens, logits, folder):
    """Writes the other spellings; transformers must compute equal bits from each of them."""
    values = json.loads((folder / "config.json").read_text())
    for variant in case.variants:
        path = folder / f"config.{variant}.json"
        path.write_text(json.dumps(VARIANTS[variant](values), indent=2) + "\n")
        config_class = transformers.CONFIG_MAPPING[case.family]
        other = make_model(config_class.from_dict(json.loads(path.read_text())))
        other.load_state_dict(model.state_dict())
        if not torch.equal(run(other, tokens[: case.prompt])[0], logits):
            raise RuntimeError(f"{path}: another meaning")


def check_saved(case, folder, tokens, logits):
    """The committed files, loaded afresh, must give the committed logits."""
    if case.fp8 or case.mxfp4:
        model = make_model(make_config(case))
        form = fp8 if case.fp8 else mxfp4
        model.load_state_dict(form.load_dequantized(folder), strict=False)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, **EAGER
        ).eval()
    if not torch.equal(run(model, tokens[: case.prompt])[0], logits):
        raise RuntimeError(f"{case.name}: the saved files give other logits")


def report(case, folder, tokens, logits, attempt):
    size = sum(p.stat().st_size for p in folder.iterdir())
    rms = logits.pow(2).mean().sqrt().item()
    distinct = tokens[case.prompt :].unique().numel()
    note = ""
    expected = load_file(folder / "expected.safetensors")
    if "logits_bf16" in expected:
        off = (expected["logits_bf16"] - logits).abs().max().item() / rms
        note = f"  bf16 off by {off:.3f} rms"
    print(f"{case.name:28}{size / 1024:7.0f} kB  logits rms {rms:.2f}  "
          f"{distinct:2} distinct greedy  attempt {attempt}{note}")  # fmt: skip


def generate(case):
    folder = HERE / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model, stored, tokens, attempt = find_model(case)
    saved = None if case.gguf_types else save_model(case, model, stored, folder)
    logits = save_expected(case, model, saved, tokens, folder)
    if case.gguf:
        gguf_models.write(case, model, stored, folder / "model.gguf")
    if saved:
        save_variants(case, model, tokens, logits, folder)
        check_saved(case, folder, tokens, logits)
    for path in folder.iterdir():
        path.chmod(0o644)
    report(case, folder, tokens, logits, attempt)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases (default: all, and quant)")
    names = parser.parse_args().names
    unknown = set(names) - {c.name for c in CASES} - {"quant"}
    if unknown:
        sys.exit(f"unknown case: {', '.join(sorted(unknown))}")
    os.umask(0o022)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("gguf").setLevel(logging.ERROR)
    for case in CASES:
        if not names or case.name in names:
            generate(case)
    if not names or "quant" in names:
        quant_fixtures.write_all(HERE / "quant")


if __name__ == "__main__":
    main()
