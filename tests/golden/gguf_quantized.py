"""Models that exist as quantised GGUF only; expected logits come from the dequantised weights.

Quantisers of the K formats are not in the gguf package, so blocks are drawn at random with scales
that centre the weights on zero; what they mean is what gguf.dequantize says.
"""

import gguf
import numpy as np
import torch

from gguf_models import deinterleave, heads_to_interleave, interleave


def pack_scales(scales, mins):
    """12 bytes of a Q4_K or Q5_K block from eight 6-bit scales and eight 6-bit minima."""
    first = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    second = mins[:, :4] | (mins[:, 4:] >> 4) << 6
    third = (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1).astype(np.uint8)


def halves(rng, count, mean):
    value = mean * rng.uniform(0.7, 1.3, (count, 1))
    return value.astype("<f2").view(np.uint8)


def random_k_blocks(rng, qtype, count, spread):
    """uint8 [count, bytes of a block] whose values have about the standard deviation `spread`."""
    block_bytes = gguf.GGML_QUANT_SIZES[qtype][1]
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    if qtype.name == "Q6_K":  # d * scale * (q - 32), int8 scale
        blocks[:, 208:210] = halves(rng, count, spread / (74.0 * 18.5))
        return blocks
    levels = {"Q4_K": 16, "Q5_K": 32}[qtype.name]  # d * scale * q - dmin * min
    scales = rng.integers(16, 64, (count, 8)).astype(np.uint8)
    d = spread / (42.0 * levels / 12**0.5)
    blocks[:, 0:2] = halves(rng, count, d)
    blocks[:, 2:4] = halves(rng, count, d * (levels - 1) / 2)
    blocks[:, 4:16] = pack_scales(scales, scales)
    return blocks


def quantize(rng, value, qtype):
    """Raw bytes [..., bytes of a row] for a weight like `value`."""
    if not qtype.name.endswith("_K"):
        return gguf.quantize(value, qtype)
    rows, columns = value.shape
    blocks = random_k_blocks(rng, qtype, rows * columns // 256, float(value.std()))
    return blocks.reshape(rows, -1)


def type_of(types, name):
    """The GGUF type for a Hugging Face tensor name: `types` maps a part of the name to it."""
    return next(gguf.GGMLQuantizationType[t] for part, t in types.items() if part in name)


def quantize_model(case, model, seed):
    """Replaces matrices by what their quantised form means; returns (raw bytes, type) by name."""
    rng = np.random.default_rng(seed + 2)
    stored = {}
    for name, parameter in sorted(model.named_parameters()):
        value = parameter.data.numpy()
        if value.ndim == 1:
            continue
        qtype = type_of(case.gguf_types, name)
        heads = heads_to_interleave(case, model.config, name)
        rows = interleave(value, heads) if heads else value
        raw = quantize(rng, np.ascontiguousarray(rows), qtype)
        meant = gguf.dequantize(raw, qtype).reshape(value.shape)
        parameter.data = torch.from_numpy(deinterleave(meant, heads) if heads else meant).clone()
        stored[name] = (raw, qtype)
    return stored
