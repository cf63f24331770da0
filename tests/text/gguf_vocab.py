"""Vocabularies in the form that GGUF metadata has: from a .gguf, and from a tokenizer.json as converters write them."""

import json

import tokenizers

# Tokenizers whose GGUF conversions name one of our pre-tokenizers, and that name.
PRES = {
    "llama3": "llama-bpe",
    "llama3_1": "llama-bpe",
    "qwen3": "qwen2",
    "qwen2_5": "qwen2",
    "deepseek_v3": "deepseek-v3",
    "gptoss": "gpt-4o",
    "mistral_nemo": "tekken",
    "command_r_plus": "command-r",
    "llama2": None,
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def of_hf(folder, pre):
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab = dict(data["model"]["vocab"])
    added = {a["content"]: a for a in data["added_tokens"]}
    vocab.update({content: a["id"] for content, a in added.items()})
    size = max(vocab.values()) + 1
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [UNUSED] * size
    for token, i in vocab.items():
        tokens[i] = token
        kind = NORMAL
        if token in added:
            kind = CONTROL if added[token]["special"] else USER_DEFINED
        if pre is None and token.startswith("<0x") and len(token) == 6:
            kind = BYTE
        types[i] = kind
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    if pre is None:
        # SentencePiece ranks pieces by score: minus the rank of the first merge that makes the piece.
        ranks = {}
        for rank, merge in enumerate(merges):
            ranks.setdefault(merge.replace(" ", ""), rank)
        scores = [-float(ranks.get(token, 1e6)) for token in tokens]
        types[0] = UNKNOWN
        return {"model": "llama", "tokens": tokens, "token_types": types, "scores": scores, "merges": [],
                "unk_id": 0, "bos_id": 1, "eos_id": 2}
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_types": types, "merges": merges}


def of_gguf(path):
    import gguf  # the reference reader

    fields = gguf.GGUFReader(path).fields

    def get(key, default=None):
        field = fields.get("tokenizer." + key)
        return default if field is None else field.contents()

    vocab = {
        "model": get("ggml.model"), "pre": get("ggml.pre", ""), "tokens": get("ggml.tokens"),
        "token_types": get("ggml.token_type", []), "merges": get("ggml.merges", []),
        "bos_id": get("ggml.bos_token_id"), "eos_id": get("ggml.eos_token_id"),
        "unk_id": get("ggml.unknown_token_id"), "add_bos": get("ggml.add_bos_token"),
        "add_space_prefix": get("ggml.add_space_prefix"), "chat_template": get("chat_template", ""),
    }
    return vocab


def smollm2_reference(vocab):
    """SmolLM2's tokenizer as its tokenizer.json builds it: digits alone, then GPT-2's byte-level pattern."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    merges = [tuple(m.split(" ")) for m in vocab["merges"]]
    made = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(vocab["tokens"])}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False)
                             for t, k in zip(vocab["tokens"], vocab["token_types"]) if k == CONTROL])
    return made
