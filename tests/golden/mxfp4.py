"""Experts in MXFP4 as published GPT-OSS files hold them.

A block is 32 values along the inputs of one output: E2M1 codes, two in a byte, the lower nibble
first, and one E8M0 scale: weight = e2m1 * 2^(scale - 127).
"""

import numpy as np
import torch
from safetensors.torch import load_file

import fp8

BLOCK = 32
MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])  # by code: bit 3 is the sign
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
CONFIG = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def dequantize(blocks, scales):
    """float32 [..., 32 * blocks in a row] of blocks u8 [..., blocks, 16] and scales u8 [..., blocks]."""
    low, high = VALUES[blocks & 15], VALUES[blocks >> 4]
    values = np.stack([low, high], axis=-1).reshape(*blocks.shape[:-1], BLOCK)
    scaled = np.ldexp(values, (scales.astype(np.int32) - 127)[..., None])
    return scaled.reshape(*blocks.shape[:-2], -1).astype(np.float32)


def quantize(rows, rng):
    """Blocks and scales of float32 [..., in]; scales wander by a factor of two over what is needed."""
    values = rows.reshape(*rows.shape[:-1], rows.shape[-1] // BLOCK, BLOCK)
    peak = np.abs(values).max(axis=-1)
    exponent = np.floor(np.log2(np.maximum(peak, 2.0**-100))).astype(np.int32) - 2
    exponent += rng.integers(0, 2, exponent.shape)
    scaled = np.ldexp(values, -exponent[..., None])
    nearest = np.abs(np.abs(scaled)[..., None] - MAGNITUDES).argmin(axis=-1)
    codes = (nearest | np.where(scaled < 0, 8, 0)).astype(np.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent + 127).astype(np.uint8)


def quantize_model(model, seed):
    """Replaces the experts' matrices by their dequantised values; returns blocks and scales by name."""
    rng = np.random.default_rng(seed + 2)
    stored = {}
    for name, parameter in sorted(model.named_parameters()):
        if not name.endswith(EXPERTS):
            continue
        rows = np.ascontiguousarray(parameter.data.numpy().swapaxes(1, 2))  # [experts, out, in]
        blocks, scales = quantize(rows, rng)
        meant = np.ascontiguousarray(dequantize(blocks, scales).swapaxes(1, 2))
        parameter.data = torch.from_numpy(meant)
        stored[name + "_blocks"] = torch.from_numpy(blocks)
        stored[name + "_scales"] = torch.from_numpy(scales)
    return stored


def rewrite_folder(folder, stored):
    fp8.rewrite_folder(folder, stored, CONFIG, EXPERTS)


def load_dequantized(folder):
    """A state dict of float32, by transformers' own reader of the blocks."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = load_file(folder / "model.safetensors")
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            out[base] = convert_moe_packed_tensors(
                tensor, tensors[base + "_scales"], dtype=torch.float32
            )
        elif not name.endswith("_scales"):
            out[name] = tensor.float()
    out["lm_head.weight"] = out.get("lm_head.weight", out["model.embed_tokens.weight"])
    return out
