"""Block-scaled E4M3 weights as DeepSeek-V3 and Qwen3-FP8 publish them.

weight = code * scale of its 128x128 block, in f32. Blocks at the right and lower edge may be cut.
"""

import json

import torch
from safetensors.torch import load_file, save_file

BLOCK = 128
MAX_E4M3 = 448.0
CONFIG = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}


def expand(scale, rows, columns):
    whole = scale.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return whole[:rows, :columns]


def dequantize(codes, scale):
    return codes.float() * expand(scale, *codes.shape)


def quantize(weight, scale_dtype, generator):
    """Scales wander by a factor of 1-6 over what the block needs, so that subnormals occur too."""
    rows, columns = weight.shape
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    padded = torch.zeros(grid[0] * BLOCK, grid[1] * BLOCK)
    padded[:rows, :columns] = weight
    peak = padded.reshape(grid[0], BLOCK, grid[1], BLOCK).abs().amax(dim=(1, 3))
    slack = 1.0 + 5.0 * torch.rand(grid, generator=generator)
    scale = (peak / MAX_E4M3 * slack).to(scale_dtype)
    codes = (weight / expand(scale, rows, columns)).to(torch.float8_e4m3fn)
    return codes, scale


def quantize_model(model, seed):
    """Replaces the layers' matrices by their dequantised values; returns codes and scales by name.

    Layer 0 has F32 scales, the others BF16: both occur in published files.
    """
    generator = torch.Generator().manual_seed(seed + 2)
    stored = {}
    for name, parameter in sorted(model.named_parameters()):
        scale_dtype = torch.float32 if ".layers.0." in name else torch.bfloat16
        for file_name, matrix in matrices(name, parameter.data):
            codes, scale = quantize(matrix, scale_dtype, generator)
            matrix.copy_(dequantize(codes, scale))
            stored[file_name] = codes
            stored[file_name + "_scale_inv"] = scale
    return stored


def matrices(name, value):
    """(name in the file, view of the values) of what is quantised of a parameter."""
    if name.endswith("proj.weight"):
        yield name, value
    if ".experts." not in name:
        return
    experts, kind = name.rsplit(".", 1)
    for e, expert in enumerate(value):
        parts = {kind: expert} if kind == "down_proj" else dict(
            zip(("gate_proj", "up_proj"), expert.chunk(2)))  # fmt: skip
        for part, matrix in parts.items():
            yield f"{experts}.{e}.{part}.weight", matrix


def rewrite_folder(folder, stored, quantization=CONFIG, without=()):
    """`stored` in place of the tensors whose names end as `without` says, and of those of the same names."""
    path = folder / "model.safetensors"
    tensors = {name: value for name, value in load_file(path).items() if not name.endswith(tuple(without))}
    tensors.update(stored)
    save_file(tensors, path, metadata={"format": "pt"})
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    config["quantization_config"] = quantization
    config_path.write_text(json.dumps(config, indent=2) + "\n")


def stack_experts(tensors):
    """The experts' matrices under the names that transformers holds them by."""
    stacks = {}
    for name in [n for n in tensors if ".mlp.experts." in n]:
        experts, e, part, _ = name.rsplit(".", 3)
        stacks.setdefault(experts, {}).setdefault(int(e), {})[part] = tensors.pop(name)
    for experts, by_index in stacks.items():
        each = [by_index[e] for e in sorted(by_index)]
        gate_up = [torch.cat([x["gate_proj"], x["up_proj"]]) for x in each]
        tensors[experts + ".gate_up_proj"] = torch.stack(gate_up)
        tensors[experts + ".down_proj"] = torch.stack([x["down_proj"] for x in each])


def load_dequantized(folder):
    tensors = load_file(folder / "model.safetensors")
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        scale = tensors.get(name + "_scale_inv")
        out[name] = tensor.float() if scale is None else dequantize(tensor, scale)
    stack_experts(out)
    out["lm_head.weight"] = out.get("lm_head.weight", out["model.embed_tokens.weight"])
    return out
