#!/usr/bin/env python3
"""Samples short stories for children from SmolLM2-135M-Instruct, many at a time.

Asks servers that already run, over OpenAI's completions API, for example two one-core ones of
`sixfold serve SmolLM2-135M-Instruct.Q4_1.gguf --served-model-name smollm2 -t 1 --dtype int8`.
Writes one JSON object a line: {"id", "topic", "text", "ended"}. What is asked for depends on --seed
and the story's number alone; a run that was stopped goes on where it ended.
"""
import argparse
import http.client
import itertools
import json
import os
import random
import threading
import time

ANIMALS = """cat dog fox bear mouse rabbit frog duck hen pig cow horse goat sheep lion tiger monkey
owl bird fish whale turtle snail bee ant spider squirrel hedgehog deer wolf crow goose donkey puppy
kitten lamb chick elephant penguin mole""".split()
PEOPLE = """boy girl farmer baker king queen princess prince fisherman grandmother grandfather
mother father teacher sailor painter gardener doctor shepherd miller tailor postman""".split()
NAMES = """Tim Lily Tom Anna Ben Mia Sam Lucy Max Rosie Jack Ella Leo Sue Bob Molly Pip Daisy Finn
Nora Toby Ruby Oscar Jill Milo Poppy Henry Kate Hugo Bella""".split()
DEEDS = """finds a key|loses a hat|helps a friend|is afraid of the dark|wants to fly|plants a seed
makes a new friend|gets lost in the forest|finds a red ball|learns to swim|bakes a cake
shares an apple|builds a house|sees snow for the first time|tells a lie|looks for a lost toy
crosses a river|is kind to a stranger|wants to be big|cannot sleep|finds an egg|learns to say sorry
goes to the market|hears a strange sound|climbs a tall hill|has a birthday|breaks a cup
waits for the rain|saves a bird|finds a little boat|sings a song|wants to see the sea
is too proud|gets a gift|paints a picture|rides a train|meets a giant|catches a cold
follows a star|digs a hole|finds a box|wins a race|is very hungry|cleans the house
forgets a promise|fixes a broken toy|visits the moon in a dream|counts the stars|feels lonely
learns to wait""".replace("\n", "|").split("|")
PLACES = """in a forest|on a farm|by the sea|in a small village|near a river|in a garden|on a hill
in a big town|by a pond|in a cold land|in an old house|at school|in a field|on an island
in a castle""".replace("\n", "|").split("|")
ADJECTIVES = """little brave shy kind lazy clever hungry sad happy old young proud funny quiet
silly small gentle greedy lonely curious""".split()
OPENINGS = ["Once upon a time, there was {who} named {name}.", "One day, {who} named {name}",
            "There was once {who} called {name}.", "{name} was {who}.",
            "{name} the {noun} lived {place}.", "", "", ""]


def article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def ingredients(seed, number):
    """Story `number`: its topic, what is asked, and how the answer has to begin."""
    rng = random.Random(seed * 1_000_003 + number)
    noun = rng.choice(ANIMALS if rng.random() < 0.65 else PEOPLE)
    who = article(rng.choice(ADJECTIVES) + " " + noun)
    topic = {"noun": noun, "who": who, "name": rng.choice(NAMES), "deed": rng.choice(DEEDS),
             "place": rng.choice(PLACES)}
    ask = ("Write a short story for children about {who} named {name} who {deed} {place}. "
           "Use simple words and short sentences.").format(**topic)
    return topic, ask, rng.choice(OPENINGS).format(**topic)


class Sampler:
    """Shares the stories out among threads; the lock guards the numbers, the file, the counter."""

    def __init__(self, args):
        self.args, self.lock, self.tokens, self.written = args, threading.Lock(), 0, 0
        done = set()
        if os.path.exists(args.out):
            with open(args.out, encoding="utf-8") as file:
                done = {json.loads(line)["id"] for line in file}
        self.left = (n for n in range(args.stories) if n not in done)
        self.file = open(args.out, "a", encoding="utf-8")
        self.end = time.monotonic() + 60 * args.minutes

    def take(self):
        with self.lock:
            return None if time.monotonic() > self.end else next(self.left, None)

    def work(self, server):
        args = self.args
        host, port = server.split(":")
        while (number := self.take()) is not None:
            topic, ask, opening = ingredients(args.seed, number)
            prompt = f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n{opening}"
            body = {"model": args.model, "prompt": prompt, "seed": number,
                    "max_tokens": args.max_tokens, "temperature": args.temperature,
                    "min_p": args.min_p, "frequency_penalty": args.frequency_penalty}
            connection = http.client.HTTPConnection(host, int(port), timeout=900)
            connection.request("POST", "/v1/completions", json.dumps(body),
                               {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            connection.close()
            choice = answer["choices"][0]
            row = {"id": number, "topic": topic, "text": opening + choice["text"],
                   "ended": choice["finish_reason"] == "stop"}
            with self.lock:
                self.tokens += answer["usage"]["completion_tokens"]
                self.written += 1
                self.file.write(json.dumps(row) + "\n")
                self.file.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="127.0.0.1:8000", help="host:port,host:port…")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", required=True, help="JSONL file; continued if it is there")
    parser.add_argument("--stories", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--parallel", type=int, default=96, help="requests at a time, all servers")
    parser.add_argument("--temperature", type=float, default=0.9)
    parser.add_argument("--min-p", type=float, default=0.1)
    parser.add_argument("--frequency-penalty", type=float, default=0.3)
    parser.add_argument("--max-tokens", type=int, default=180)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    sampler, begin = Sampler(args), time.monotonic()
    servers = itertools.islice(itertools.cycle(args.servers.split(",")), args.parallel)
    threads = [threading.Thread(target=sampler.work, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    print(f"{sampler.written} stories, {sampler.tokens} tokens in {seconds:.0f} s")


if __name__ == "__main__":
    main()
