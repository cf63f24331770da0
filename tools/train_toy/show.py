#!/usr/bin/env python3
"""Prints samples of a toy folder as Markdown: 12 chats, 8 texts to continue; every 5th greedy."""
import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

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
    parser.add_argument("--tokens", type=int, default=160)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    for number, prompt in enumerate(CHATS + TEXTS, 1):
        text = prompt
        if number <= len(CHATS):
            text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}],
                                                 tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, return_tensors="pt").input_ids
        torch.manual_seed(number)
        how = dict(do_sample=False) if number % 5 == 0 else dict(
            do_sample=True, temperature=0.7, top_p=0.9, top_k=0)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens,
                             **how)[0, ids.shape[1]:].tolist()
        ended = out[-1] < 3  # the special tokens come first
        answer = tokenizer.decode(out, skip_special_tokens=True).strip()
        kind = "chat" if number <= len(CHATS) else "text"
        how = "greedy" if number % 5 == 0 else f"seed {number}"
        print(f"{number}. *{kind}, {how}{'' if ended else ', cut'}:* **{prompt}** "
              f"{answer}\n".replace("\n\n", "\n\n   ").rstrip() + "\n")


if __name__ == "__main__":
    main()
