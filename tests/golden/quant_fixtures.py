"""quant/: GGUF files of every block format with what the gguf package dequantises from them.

Blocks are random bytes, which reaches every code; their f16 scales are made finite, and some are
negative, zero or subnormal.
"""

import shutil
import zlib

import gguf
import numpy as np
from safetensors.numpy import save_file

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]

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

# Shapes as numpy has them, rows last; multiplied by the block length. 3-D stands for experts.
SHAPES = {"vector": (1,), "matrix": (7, 2), "wide": (2, 3), "experts": (3, 2, 1)}
SMALL_SHAPES = {"vector": (3,), "matrix": (7, 5), "wide": (2, 9), "experts": (3, 2, 4)}


def finite_halves(rng, count):
    """Ordinary scales (|x| about 2^-12 .. 2^0, either sign), and an edge value every third time."""
    ordinary = (rng.choice([-1.0, 1.0], count) * 2.0 ** rng.uniform(-12, 0, count)).astype("<f2")
    edges = rng.choice(np.array(EDGE_HALVES, dtype="<u2"), count)
    return np.where(np.arange(count) % 3 == 2, edges, ordinary.view("<u2")).astype("<u2")


def random_blocks(rng, qtype_name, count, block_bytes):
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for offset in SCALES[qtype_name]:
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
    if qtype.name in SCALES:
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


def write_all(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in TYPES:
        write_type(folder, name)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{'quant':28}{size / 1024:7.0f} kB")
