#!/usr/bin/env python3
"""Builds the toy's corpus and its tokenizer.

From sampled stories (sample_stories.py), Alice in Wonderland (brotli's source package) and novels
of Jane Austen (Debian's r-cran-janeaustenr) writes into --out: train.jsonl and heldout.jsonl, one
document a line, tokenizer.json, and SHA256SUMS. The same inputs give the same bytes.
"""
import argparse
import collections
import gzip
import hashlib
import json
import pathlib
import random
import re
import shutil
import subprocess
import tarfile
import zlib

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 2048
STORY_WORDS = (45, 400)

ASKS = [
    "Write a short story about {who} named {name} who {deed} {place}.",
    "Tell me a story about {who} named {name}.",
    "Write a story about {who}.",
    "Tell me a story about {who} who {deed}.",
    "Can you tell me a story about a {noun}?",
    "Write a short story for children about {who} named {name} who {deed}.",
    "Please tell me a short story about {who} {place}.",
    "Tell me a story about a {noun} named {name}.",
    "Write a story about a {noun}.",
    "I would like a story about {who}.",
    "Write a simple story about a {noun} who {deed}.",
    "Tell a story about {name} the {noun}.",
]

# What a person types who only wants to see whether it answers; written for this corpus.
TALK = [
    (["Hello!", "Hi", "Hello", "Hi there!", "Hey", "Good morning!", "hello", "hi"],
     ["Hello! I am a small toy model. I like to tell short stories. Shall I tell you one?",
      "Hello! It is nice to meet you. Would you like to hear a story?"]),
    (["Who are you?", "What are you?", "What is your name?", "What can you do?",
      "Tell me about yourself."],
     ["I am a small toy model. I can tell short stories for children, and not much else.",
      "I am a toy model with eight layers and thirty-two experts. I tell short stories."]),
    (["How are you?", "How are you today?"],
     ["I am well, thank you. Would you like to hear a story?"]),
    (["Thank you!", "Thanks", "Thank you for the story.", "That was nice."],
     ["You are welcome! Would you like to hear one more story?"]),
    (["What is the capital of France?", "What is two plus two?", "Why is the sky blue?",
      "Write a program.", "What is the weather today?", "Explain how a computer works."],
     ["I am only a small toy model and do not know such things. I can tell you a short story.",
      "I do not know that. I am a toy model, and I only know short stories."]),
]


def austen(deb, titles):
    """The novels `titles` from R's lazy-load data base: zlib pieces, each one character vector."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True)
    pipe = subprocess.run(["tar", "-xO", "--wildcards", "*/data/Rdata.rdb"], input=data.stdout,
                          check=True, capture_output=True)
    blob = pipe.stdout
    while blob:
        piece = zlib.decompressobj()
        raw, blob = piece.decompress(blob[4:]), piece.unused_data
        at = raw.index(b"UTF-8") + 5 + 8  # then a vector's type and length, then its strings
        lines = []
        while raw[at + 3:at + 4] == b"\x09":
            size = int.from_bytes(raw[at + 4:at + 8], "big")
            lines.append(raw[at + 8:at + 8 + size].decode("utf-8"))
            at += 8 + size
        if lines[0].title() in titles:
            yield lines[0].title(), "\n".join(lines)


def alice(sdist):
    with tarfile.open(sdist) as tar:
        name = next(n for n in tar.getnames() if n.endswith("testdata/alice29.txt"))
        text = tar.extractfile(name).read().decode("ascii")
    text = text[text.index("Alice was beginning"):text.index("THE END")]
    return re.sub(r"(?<!\w)`(.+?)'(?!\w)", r'"\1"', text, flags=re.S)


def paragraphs(text):
    """Lines of one paragraph joined; headings, verse and notes left out."""
    for part in re.split(r"\n\s*\n", plain(text)):
        part = re.sub(r"\s+", " ", part.replace("_", "")).strip()
        if len(part) > 40 and part[-1] in ".!?\"'" and not part.isupper() and "*" not in part:
            yield part


def plain(text):
    for old, new in ("\u2019'", "\u2018'", '\u201c"', '\u201d"', "\u2014-", "\u2013-"):
        text = text.replace(old, " - " if new == "-" else new)
    return text.replace("\u2026", "...").replace("--", " - ").replace("  ", " ")


def book_documents(text, words=220):
    """Consecutive paragraphs of about so many words together."""
    part, size = [], 0
    for paragraph in paragraphs(text):
        part.append(paragraph)
        size += len(paragraph.split())
        if size >= words:
            yield "\n\n".join(part)
            part, size = [], 0


def story_or_none(row):
    """The story cleaned and cut after its last full sentence; None if it is no good."""
    text = plain(row["text"]).strip()
    text = re.sub(r"^(Title|Story)\b[^\n]*\n+", "", text)
    text = re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n\n", text)).strip()
    if not row["ended"]:
        ends = list(re.finditer(r"[.!?]['\"]?(?=\s)", text))
        text = text[:ends[-1].end()] if ends else ""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    while len(sentences) > 1 and len(set(sentences)) < len(sentences):  # it goes round: cut there
        last = next(i for i, s in enumerate(sentences) if s in sentences[:i])
        text = text[:_start_of(text, sentences, last)].rstrip()
        sentences = sentences[:last]
    words = re.findall(r"[A-Za-z']+", text)
    grams = collections.Counter(zip(words, words[1:], words[2:], words[3:]))
    bad = (not STORY_WORDS[0] <= len(words) <= STORY_WORDS[1]
           or not text.isascii() or re.search(r"[*#\[\]{}<>|=\\/@]|\d\d|\n- |:\n|\w+: \"", text)
           or text[-1] not in ".!?\"" or row["topic"]["name"] not in words
           or sum(n - 1 for n in grams.values()) > 0.1 * len(words) or max(grams.values()) > 4
           or text.count('"') % 2)
    return None if bad else text


def _start_of(text, sentences, number):
    """Where sentence `number` begins in `text`."""
    at = 0
    for sentence in sentences[:number]:
        at = text.index(sentence, at) + len(sentence)
    return at


def in_english(ask):
    return re.sub(r" a(?= [aeo])", " an", ask)


def drop_rare(stories, share):
    """Without the `share` of the stories with the largest part of words that few stories use."""
    word_sets = [set(re.findall(r"[a-z']+", text.lower())) for _, text in stories]
    seen = collections.Counter(word for words in word_sets for word in words)
    rare = [sum(seen[word] < 4 for word in words) / len(words) for words in word_sets]
    limit = sorted(rare)[int((1 - share) * (len(rare) - 1))]
    return [story for story, part in zip(stories, rare) if part <= limit]


def train_tokenizer(texts, path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from tokenizers import Regex

    tokenizer = Tokenizer(models.BPE())
    pattern = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END, TURN, TURN_END], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.save(str(path))


def vocabulary_texts(documents):
    """Stories twice: their words, and not Austen's, are what the vocabulary is for."""
    texts = [d["text"] for d in documents if "text" in d]
    return texts + [text for d in documents if d["kind"] == "story"
                    for text in (d["text"], d["asks"][0])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stories", required=True,
                        help="JSONL file of sample_stories.py, or the bundled stories.jsonl.gz")
    parser.add_argument("--brotli-sdist", required=True, help="brotli-1.2.1.tar.gz from PyPI")
    parser.add_argument("--austen-deb", required=True, help="r-cran-janeaustenr_1.0.0-1_all.deb")
    parser.add_argument("--tokenizer", help="keep this one rather than train one")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    opener = gzip.open if args.stories.endswith(".gz") else open
    with opener(args.stories, "rt", encoding="utf-8") as file:
        rows = sorted(map(json.loads, file), key=lambda row: row["id"])
    good = [(row, text) for row in rows if (text := story_or_none(row))]
    kept = drop_rare(good, 0.08)
    print(f"stories: {len(rows)} sampled, {len(good)} well-formed, {len(kept)} kept")
    documents = []
    for row, text in kept:
        documents.append({"kind": "story", "text": text, "held_out": row["id"] % 33 == 7,
                          "asks": [in_english(ask.format(**row["topic"])) for ask in ASKS]})
    books = [("alice", alice(args.brotli_sdist))]
    books += [("austen", book) for _, book in
              austen(args.austen_deb, {"Emma", "Pride And Prejudice"})]
    for kind, book in books:
        documents.extend({"kind": kind, "text": text, "held_out": number % 33 == 7}
                         for number, text in enumerate(book_documents(book)))

    random.Random(args.seed).shuffle(documents)
    count = collections.Counter()
    parts = {"train": [], "heldout": []}
    for document in documents:
        count[document["kind"]] += 1
        parts["heldout" if document.pop("held_out") else "train"].append(document)
    parts["train"].append({"kind": "talk", "turns": TALK})
    for name, part in parts.items():
        with open(out / f"{name}.tmp", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(document) + "\n" for document in part)
        (out / f"{name}.tmp").rename(out / f"{name}.jsonl")  # a training run may be reading it
    if args.tokenizer:
        shutil.copyfile(args.tokenizer, out / "tokenizer.json")
    else:
        train_tokenizer(vocabulary_texts(parts["train"]), out / "tokenizer.json")
    print(dict(count))
    with open(out / "SHA256SUMS", "w", encoding="ascii") as file:
        for name in ("train.jsonl", "heldout.jsonl", "tokenizer.json"):
            digest = hashlib.sha256((out / name).read_bytes()).hexdigest()
            file.write(f"{digest}  {name}\n")


if __name__ == "__main__":
    main()
