"""Makes src/text/testdata: tiny tokenizers trained on the corpus, and the ids that their own libraries give.

Needs tokenizers 0.23 and sentencepiece 0.2 (tests/text/requirements.txt). Run it to change the fixtures; tests only read them.
"""

import io
import json
import pathlib

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent.parent / "src" / "text" / "testdata"
CORPUS = [json.loads(line) for line in (HERE / "corpus.jsonl").read_text().split("\n") if line]
TEXTS = [t for t in CORPUS if "\0" not in t and len(t) < 120][::4] + ["", " ", "Hello world", "👩‍🚀 x", "a  b   c"]
# Few enough characters for a small vocabulary; the others become bytes.
LETTERS = [t for t in CORPUS if t and max(map(ord, t)) < 0x530] * 3
KINDS = {"unknown": 2, "control": 3, "unused": 5, "byte": 6}


def byte_bpe():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    # A loader must ignore these two sections.
    made.enable_truncation(4)
    made.enable_padding(length=64)
    folder = OUT / "tiny_bpe"
    folder.mkdir(parents=True, exist_ok=True)
    data = json.loads(made.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=True))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True}, "eos_token": "<|im_end|>",
        "chat_template": [
            {"name": "default", "template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"},
            {"name": "tool_use", "template": "{{ tools|tojson }}"}]}, indent=1))
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "</s>", "pad_token": "</s>"}))
    made.no_truncation()
    made.no_padding()
    rows = [{"text": t, "ids": made.encode(t).ids, "plain": made.encode(t, add_special_tokens=False).ids} for t in TEXTS]
    (OUT / "tiny_bpe_expected.json").write_text(json.dumps(rows))


def sentence_piece(kind, name, **more):
    """A SentencePiece model as GGUF metadata would hold it, with SentencePiece's own ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LETTERS), model_writer=model, model_type=kind, byte_fallback=True,
        character_coverage=0.98, minloglevel=2, num_threads=1, **more)
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    types = []
    for i in range(len(made)):
        flags = [k for k, test in (("unknown", made.is_unknown), ("control", made.is_control), ("unused", made.is_unused),
                                   ("byte", made.is_byte)) if test(i)]
        types.append(KINDS[flags[0]] if flags else 1)
    vocab = {"model": "llama" if kind == "bpe" else "t5", "tokens": [made.id_to_piece(i) for i in range(len(made))],
             "token_types": types, "scores": [made.get_score(i) for i in range(len(made))], "merges": [],
             "bos_id": made.bos_id(), "eos_id": made.eos_id(), "unk_id": made.unk_id(), "add_bos": False, "add_eos": False,
             "remove_extra_whitespaces": more["remove_extra_whitespaces"]}
    texts = [t for t in TEXTS if not any(s in t for s in ("<s>", "</s>", "<unk>", "▁"))]
    rows = [{"text": t, "ids": made.encode(t), "decoded": made.decode(made.encode(t))} for t in texts]
    (OUT / f"{name}.json").write_text(json.dumps({"vocab": vocab, "rows": rows}))


if __name__ == "__main__":
    byte_bpe()
    sentence_piece("bpe", "tiny_spm_bpe", vocab_size=700, normalization_rule_name="identity",
                   remove_extra_whitespaces=False)
    sentence_piece("unigram", "tiny_spm_unigram", vocab_size=600, normalization_rule_name="identity",
                   remove_extra_whitespaces=True)
