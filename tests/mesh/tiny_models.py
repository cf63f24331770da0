"""Golden models changed for what the tests need: long answers, a tokenizer."""
import json
import shutil

from program import GOLDEN


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
