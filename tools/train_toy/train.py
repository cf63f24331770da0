#!/usr/bin/env python3
"""Trains the toy on CPU processes of one thread each, which average their gradients every step.

One thread a process: threads of one process would wait for each other in every operation, which on
a machine with other work costs more than the average does. Every draw comes from --seed; a run that
spends --tokens before --minutes is the same each time. Where time runs out first, the learning rate
and the phases follow the clock instead. Writes DIR/last.pt every few minutes and at the end.
"""
import argparse
import datetime
import json
import math
import os
import pathlib
import random
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer

from corpus import END, TURN, TURN_END
from model import Shape, Toy

SYSTEMS = ["You are a helpful assistant.", "You tell short stories.", "You are a toy model.",
           "You tell stories to small children in short, simple sentences."]
# Share of the tokens that each kind of text gets, while the progress is below the first number.
PHASES = [(0.4, {"story": 0.66, "austen": 0.25, "alice": 0.06, "talk": 0.03}),
          (1.0, {"story": 0.90, "austen": 0.00, "alice": 0.06, "talk": 0.04})]
LONG, SHORT = 2048, 320


def turns(*pairs):
    return "".join(f"{TURN}{role}\n{text}{TURN_END}\n" for role, text in pairs)


class Stream:
    """An endless stream of tokens: documents in a new order and dress each time round."""

    def __init__(self, folder, seed):
        self.rng = random.Random(seed)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.file, self.time, self.order = folder / "train.jsonl", None, {}
        self.rest, self.cache = [], {}
        self.read()
        self.given = dict.fromkeys(self.documents, 0)

    def read(self):
        """Reads the corpus, again if it has grown while stories are still being sampled."""
        if self.time == (now := self.file.stat().st_mtime_ns):
            return
        self.time, self.documents = now, {}
        with open(self.file, encoding="utf-8") as file:
            for document in map(json.loads, file):
                self.documents.setdefault(document["kind"], []).append(document)

    def encode(self, text):
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text).ids
        return self.cache[text]

    def talk(self, document):
        asks, answers = self.rng.choice(document["turns"])
        return ("user", self.rng.choice(asks)), ("assistant", self.rng.choice(answers))

    def render(self, document):
        rng, parts = self.rng, []
        if document["kind"] != "talk" and (document["kind"] != "story" or rng.random() < 0.35):
            return self.encode(document["text"]) + self.encode(END)
        if rng.random() < 0.15:
            parts.append(("system", rng.choice(SYSTEMS)))
        talk = self.documents["talk"][0]
        if document["kind"] == "talk" or rng.random() < 0.06:
            parts.extend(self.talk(talk))
        ids = self.encode(turns(*parts)) if parts else []
        if document["kind"] == "story":
            ask = turns(("user", rng.choice(document["asks"])))
            ids = (ids + self.encode(f"{ask}{TURN}assistant\n")
                   + self.encode(document["text"]) + self.encode(TURN_END + "\n"))
        return ids + self.encode(END)

    def next_document(self, shares):
        """Of the kind that lags most behind its share."""
        kind = min((k for k in shares if shares[k]), key=lambda k: self.given[k] / shares[k])
        if not self.order.get(kind):
            self.read()
            self.order[kind] = self.rng.sample(self.documents[kind], len(self.documents[kind]))
        ids = self.render(self.order[kind].pop())
        self.given[kind] += len(ids)
        return ids

    def batch(self, rows, length, progress):
        """[rows, length + 1]; about half of the rows begin where a document does."""
        shares = next(shares for limit, shares in PHASES if progress <= limit)
        out = []
        for _ in range(rows):
            ids = [] if self.rng.random() < 0.4 else self.rest
            while len(ids) <= length:
                ids = ids + self.next_document(shares)
            out.append(ids[:length + 1])
            self.rest = ids[length + 1:]
        return torch.tensor(out)


@torch.inference_mode()
def held_out(model, folder, kind="story"):
    """(nats a token, bits a byte, tokens, assignments) of the held-out texts, one at a time."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    nats, tokens, size, counts = 0.0, 0, 0, 0
    with open(folder / "heldout.jsonl", encoding="utf-8") as file:
        texts = [d["text"] for d in map(json.loads, file) if d["kind"] == kind]
    for text in texts:
        ids = torch.tensor([tokenizer.encode(END + text + END).ids])
        logits, _, used = model(ids[:, :-1])
        nats += F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
        tokens, size, counts = tokens + ids.shape[1] - 1, size + len(text.encode()), counts + used
    return nats / tokens, nats / math.log(2) / size, tokens, counts


def rate(progress, peak, warm=0.03):
    return peak * min(1.0, progress / warm, max(0.02, (1 - progress) / (1 - warm)))


def train(rank, args):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(args.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes,
                            timeout=datetime.timedelta(minutes=10))
    folder, out = pathlib.Path(args.corpus), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    model, stream = Toy(Shape()), Stream(folder, args.seed + rank)
    if args.init:
        model.load_state_dict(torch.load(args.init)["model"])
    for layer in model.layers:
        layer.dropout = args.dropout
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), fused=True)
    flat = torch.zeros(sum(p.numel() for p in parameters) + 2)
    begin, step, tokens, saved = time.monotonic(), 0, 0, 0.0
    loss_mean, progress = None, 0.0
    while progress < args.stop:
        length = LONG if progress >= args.long_from else SHORT
        batch = stream.batch(max(1, args.rows * SHORT // length), length,
                             0.0 if args.first_phase else progress)
        logits, balance, _ = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        model.zero_grad()
        (loss + args.balance * balance).backward()
        tokens += args.processes * batch[:, 1:].numel()
        elapsed = time.monotonic() - begin
        flat[:-2] = torch.cat([p.grad.flatten() for p in parameters])
        flat[-2] = loss.item()
        flat[-1] = max(tokens / args.tokens, elapsed / (60 * args.minutes))
        dist.all_reduce(flat)
        flat /= args.processes
        for p, grad in zip(parameters, flat[:-2].split([p.numel() for p in parameters])):
            p.grad = grad.view_as(p)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(progress, args.rate)
        optimizer.step()
        step, progress = step + 1, flat[-1].item()
        mean = flat[-2].item()
        loss_mean = mean if loss_mean is None else 0.95 * loss_mean + 0.05 * mean
        if rank == 0 and (step % 25 == 0 or progress >= args.stop):
            print(f"step {step} tokens {tokens} minutes {elapsed / 60:.1f} done {progress:.3f} "
                  f"loss {loss_mean:.3f} balance {balance.item():.2f} "
                  f"tokens/s {tokens / elapsed:.0f}", flush=True)
        if rank == 0 and (elapsed - saved > 60 * args.save_minutes or progress >= args.stop):
            saved = elapsed
            torch.save({"model": model.state_dict(), "step": step, "tokens": tokens,
                        "minutes": elapsed / 60}, out / "last.tmp")
            (out / "last.tmp").rename(out / "last.pt")
            model.eval()
            nats, bits, _, counts = held_out(model, folder)
            model.train()
            print(f"held out: {nats:.4f} nats/token, {bits:.4f} bits/byte; least used expert "
                  f"{(counts / counts.sum(dim=1, keepdim=True)).min() * 100:.2f} %", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="folder that corpus.py wrote")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokens", type=float, default=10e6)
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--save-minutes", type=float, default=4)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rank", type=int, help="be this process alone; others are started apart")
    parser.add_argument("--long-from", type=float, default=0.92,
                        help="rows of 2,048 tokens when this much is done")
    parser.add_argument("--stop", type=float, default=1.0, help="end when this much is done")
    parser.add_argument("--init", help="start from the weights of this checkpoint")
    parser.add_argument("--first-phase", action="store_true", help="stay in the first phase's mix")
    parser.add_argument("--dropout", type=float, default=0.0, help="of what a block adds")
    parser.add_argument("--rows", type=int, default=3, help="rows of 320 tokens a process and step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--balance", type=float, default=0.05, help="weight of the balance loss")
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    if args.rank is None:
        mp.spawn(train, (args,), nprocs=args.processes)
    else:
        train(args.rank, args)


if __name__ == "__main__":
    main()
