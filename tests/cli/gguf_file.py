"""Small GGUF files with a vocabulary, for what a loader does with its metadata."""
import gguf
import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l o", "lo w", "Ġ lo"]
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def byte_level():
    """Metadata of a byte-level vocabulary with the markers of ChatML."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = letters + [merge.replace(" ", "") for merge in MERGES] + MARKERS
    return {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": MERGES,
            "token_type": [NORMAL] * (len(tokens) - len(MARKERS)) + [CONTROL] * len(MARKERS),
            "eos_token_id": tokens.index("<|endoftext|>")}


def byte_level_reference():
    made = byte_level()
    vocab = {token: i for i, token in enumerate(made["tokens"])}
    reference = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in MERGES]))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(MARKERS)
    return reference


def sentence_piece():
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + list("▁helow") + ["lo", "low", "he"]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 9
    return {"model": "llama", "tokens": tokens, "token_type": types, "scores": [float(-i) for i in range(len(tokens))],
            "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


def write(path, vocabulary, chat_template=None):
    writer = gguf.GGUFWriter(str(path), "nothing")
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
    for key, value in vocabulary.items():
        adders[type(value)](f"tokenizer.ggml.{key}", value)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    writer.add_tensor("x", numpy.zeros(32, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def set_u32(path, key, value):
    """Overwrites one number of a file's metadata in place."""
    field = gguf.GGUFReader(str(path), "r+").fields[key]
    field.parts[field.data[0]][0] = value
