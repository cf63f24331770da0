"""Golden models changed for what the tests need: long answers, a tokenizer."""
import json
import re
import shutil

import safetensors_file
from program import GOLDEN

SIZES = {"F32": 4, "BF16": 2, "U8": 1}


def copy(name, folder, **changes):
    """The golden model `name` in `folder`, with these values in its config."""
    folder.mkdir()
    shutil.copy(GOLDEN / name / "model.safetensors", folder)
    config = json.loads((GOLDEN / name / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def add_letters(folder):
    """A tokenizer of printable ASCII, one token a letter, and a chat template."""
    letters = {chr(code) if code != 32 else "Ġ": code - 32 for code in range(32, 127)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": letters, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}))
    return folder


def rotated(data, elements, size):
    """The same values in another order."""
    shift = elements * size % max(len(data), 1)
    return data[shift:] + data[:shift]


def more_of(blocks, count, size):
    """`count` blocks out of fewer: copies with their values in other places."""
    return [rotated(blocks[i % len(blocks)], 5 * (i // len(blocks)), size) for i in range(count)]


def grow(name, folder, experts, layers):
    """The golden model `name` with so many experts and layers, for layouts that a tiny one has too little of. What was not in it is
    made of copies of its last layer and of its experts, with their values in other places."""
    config = json.loads((GOLDEN / name / "config.json").read_text())
    counts = [key for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)]
    had, had_layers = config[counts[0]], config["num_hidden_layers"]
    tensors = {}
    for key, tensor in safetensors_file.read(GOLDEN / name / "model.safetensors").items():
        found = re.fullmatch(r"(model\.layers\.)(\d+)\.(.*)", key)
        if not found:
            tensors[key] = tensor
            continue
        for layer in range(layers):
            if min(layer, had_layers - 1) == int(found[2]):
                tensors[f"{found[1]}{layer}.{found[3]}"] = tensor
    grown = {}
    for key, tensor in tensors.items():
        size = SIZES[tensor.dtype]
        one = re.fullmatch(r"(.*\.mlp\.experts\.)(\d+)\.(.*)", key)
        if one:
            for expert in range(int(one[2]), experts, had):
                data = rotated(tensor.data, 5 * (expert // had), size)
                grown[f"{one[1]}{expert}.{one[3]}"] = safetensors_file.Tensor(tensor.dtype, tensor.shape, data)
        elif re.search(r"\.mlp\.(gate|router)\.|\.mlp\.experts\.", key):  # an expert each along the first dimension
            step = len(tensor.data) // had
            blocks = [tensor.data[i * step:(i + 1) * step] for i in range(had)]
            grown[key] = safetensors_file.Tensor(tensor.dtype, [experts, *tensor.shape[1:]], b"".join(more_of(blocks, experts, size)))
        else:
            grown[key] = tensor
    folder.mkdir()
    safetensors_file.write(folder / "model.safetensors", grown)
    config |= {key: experts for key in counts} | {"num_hidden_layers": layers}
    if config.get("layer_types"):
        config["layer_types"] = (config["layer_types"] * layers)[:layers]
    (folder / "config.json").write_text(json.dumps(config))
    return folder
