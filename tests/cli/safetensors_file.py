"""Reads and writes safetensors with the standard library alone."""
import array
import json
import struct

CODES = {"F32": "f", "I32": "i", "F64": "d", "I64": "q", "U8": "B", "BF16": "H", "F16": "H"}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data

    def values(self):
        return array.array(CODES[self.dtype], self.data)


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: Tensor(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def header_bytes(entries):
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(path, tensors):
    entries, data = {}, b""
    for name, tensor in tensors.items():
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(tensor.data)]}
        data += tensor.data
    path.write_bytes(header_bytes(entries) + data)


def largest_difference(a, b):
    assert len(a) == len(b)
    return max((abs(x - y) for x, y in zip(a, b)), default=0.0)
