#!/usr/bin/env python3
"""Prints samples of a toy folder as Markdown: 12 chats, 8 texts to continue; every 5th greedy."""
import argparse
import subprocess

CHATS = ["Hello!", "Who are you?", "Tell me a story about a little fox named Tim.",
         "Write a short story about a brave mouse who finds a key.",
         "Write a story about a kind farmer.", "Can you tell me a story about a cat?",
         "Tell me a short story about a sad king in a castle.",
         "Write a short story for children about a shy duck named Molly who learns to swim.",
         "Tell me a story about an old bear and a bee.", "Write a story about the sea.",
         "What is the capital of France?", "I would like a story about a happy dog named Ben."]
TEXTS = ["Once upon a time, there was a little girl named Lucy.", "One day, the lion",
         "There was once a hungry wolf", "The sun was shining, and", '"I am lost," said the bird.',
         "Lily and Tom went to the market.", "In a small village by the river, there lived",
         "Alice was"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--sixfold", default="sixfold", help="the program")
    parser.add_argument("--tokens", type=int, default=160)
    args = parser.parse_args()
    for number, prompt in enumerate(CHATS + TEXTS, 1):
        chat, greedy = number <= len(CHATS), number % 5 == 0
        command = [args.sixfold, "run" if chat else "generate", args.model, "--prompt", prompt,
                   "--max-tokens", str(args.tokens), "--dtype", "f32", "--threads", "1"]
        command += ["--temperature", "0"] if greedy else [
            "--temperature", "0.7", "--top-p", "0.9", "--seed", str(number)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        answer = done.stdout.strip().replace("\n\n", "\n\n   ")
        kind = "chat" if chat else "text"
        print(f"{number}. *{kind}, {'greedy' if greedy else f'seed {number}'}:* **{prompt}** "
              f"{answer}\n", flush=True)


if __name__ == "__main__":
    main()
