"""Writes dequantize_golden.inc: random blocks of each type and what the gguf package dequantises from them.

Run with gguf and numpy installed: python3 make_dequantize_golden.py > dequantize_golden.inc
"""

import gguf
import numpy as np

SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}


def lines(numbers, form, width):
    for i in range(0, len(numbers), width):
        yield "       " + " ".join(form % n for n in numbers[i:i + width])


def main():
    rng = np.random.default_rng(7)
    print("// clang-format off")
    print("// Made by make_dequantize_golden.py.")
    print("const std::vector<Golden>& GoldenBlocks() {")
    print("  static const std::vector<Golden> blocks = {")
    for name, offsets in SCALES.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        for scale in [(0.0123, 0.456), (-3.1e-6, -0.0789)]:
            block = rng.integers(0, 256, size, dtype=np.uint8)
            for offset, value in zip(offsets, scale):
                block[offset:offset + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)
            if name == "MXFP4":
                block[0] = 120 if scale[0] > 0 else 3
            values = gguf.quants.dequantize(block.reshape(1, -1), kind).astype(np.float32).reshape(-1)
            print("      {DType::k%s,\n       {" % name)
            print("\n".join(lines(block.tolist(), "%d,", 24)) + "},\n       {")
            print("\n".join(lines(values.view(np.uint32).tolist(), "0x%08x,", 9)) + "}},")
    print("  };\n  return blocks;\n}")


main()
