"""quant/: GGUF files of every block format with what the gguf package dequantises from them, and MXFP4
as Hugging Face files hold it with what transformers makes of it.

Blocks are random bytes, which reaches every code; their f16 scales are made finite, and some are
negative, zero or subnormal.
"""

import shutil
import zlib

import gguf
import numpy as np
from safetensors.numpy import save_file

import mxfp4

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
         "MXFP4"]  # fmt: skip

# Byte offsets of the f16 scales in a block.
SCALES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
# f16 bits worth meeting: +-0, the smallest and largest subnormal, the smallest normal, +-1, max.
EDGE_HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF,
               0xFBFF]  # fmt: skip

# E8M0 scales: about 2^-12 .. 2^4, and the ends of what gives finite values (0 is a subnormal).
E8M0_RANGE = (115, 132)
EDGE_E8M0 = [0, 1, 2, 251]

# Shapes as numpy has them, rows last; multiplied by the block length. 3-D stands for experts.
SHAPES = {"vector": (1,), "matrix": (7, 2), "wide": (2, 3), "experts": (3, 2, 1)}
SMALL_SHAPES = {"vector": (3,), "matrix": (7, 5), "wide": (2, 9), "experts": (3, 2, 4)}


def finite_halves(rng, count):
    """Ordinary scales (|x| about 2^-12 .. 2^0, either sign), and an edge value every third time."""
    ordinary = (rng.choice([-1.0, 1.0], count) * 2.0 ** rng.uniform(-12, 0, count)).astype("<f2")
    edges = rng.choice(np.array(EDGE_HALVES, dtype="<u2"), count)
    return np.where(np.arange(count) % 3 == 2, edges, ordinary.view("<u2")).astype("<u2")


def powers_of_two(rng, shape):
    edges = rng.choice(np.array(EDGE_E8M0, dtype=np.uint8), shape)
    ordinary = rng.integers(*E8M0_RANGE, shape, dtype=np.uint8)
    return np.where(rng.integers(0, 3, shape) == 2, edges, ordinary).astype(np.uint8)


def random_blocks(rng, qtype_name, count, block_bytes):
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    if qtype_name == "MXFP4":
        blocks[:, 0] = powers_of_two(rng, count)
    for offset in SCALES.get(qtype_name, []):
        blocks[:, offset : offset + 2] = finite_halves(rng, count).view(np.uint8).reshape(count, 2)
    return blocks


def random_floats(rng, qtype_name, count):
    """Raw bytes of plain numbers: random bits without infinities and NaN."""
    if qtype_name == "F32":
        return rng.standard_normal(count).astype("<f4").view(np.uint8)
    exponent = 0x7C00 if qtype_name == "F16" else 0x7F80
    bits = rng.integers(0, 2**16, count, dtype=np.uint16)
    bits = np.where((bits & exponent) == exponent, bits & np.uint16(0xBFFF), bits)
    return bits.astype("<u2").view(np.uint8)


def tensor_bytes(rng, qtype, shape):
    """uint8 [..., bytes of a row] for a tensor of `shape` elements."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    count = int(np.prod(shape)) // block
    if block > 1:
        raw = random_blocks(rng, qtype.name, count, block_bytes)
    else:
        raw = random_floats(rng, qtype.name, count)
    return raw.reshape(*shape[:-1], shape[-1] // block * block_bytes)


def write_type(folder, name):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    qtype = gguf.GGMLQuantizationType[name]
    block = gguf.GGML_QUANT_SIZES[qtype][0]
    shapes = SHAPES if block == 256 else SMALL_SHAPES
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "quant-fixture")
    expected = {}
    for tensor, shape in shapes.items():
        shape = (*shape[:-1], shape[-1] * max(block, 32 if block > 1 else 7))
        raw = tensor_bytes(rng, qtype, shape)
        with np.errstate(over="ignore", invalid="ignore"):
            expected[tensor] = gguf.dequantize(raw, qtype).astype(np.float32).reshape(shape)
        if not np.isfinite(expected[tensor]).all():
            raise RuntimeError(f"{name} {tensor}: not finite")
        writer.add_tensor(tensor, raw, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, folder / f"{name}.expected.safetensors")
    (folder / f"{name}.expected.safetensors").chmod(0o644)


def write_split_mxfp4(folder):
    """Two experts of five outputs and 96 inputs, as transformers stores and reads them."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(zlib.crc32(b"MXFP4_SPLIT"))
    blocks = rng.integers(0, 256, (2, 5, 3, 16), dtype=np.uint8)
    scales = powers_of_two(rng, (2, 5, 3))
    parts = [torch.from_numpy(x) for x in (blocks, scales)]
    expected = convert_moe_packed_tensors(*parts, dtype=torch.float32)  # [experts, in, out]
    expected = np.ascontiguousarray(expected.numpy().swapaxes(1, 2))
    if not np.array_equal(expected, mxfp4.dequantize(blocks, scales)):
        raise RuntimeError("transformers and mxfp4.py differ")
    path = folder / "MXFP4_SPLIT.safetensors"
    save_file({"w_blocks": blocks, "w_scales": scales, "expected": expected}, path)
    path.chmod(0o644)


def write_all(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in TYPES:
        write_type(folder, name)
    write_split_mxfp4(folder)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{'quant':28}{size / 1024:7.0f} kB")
