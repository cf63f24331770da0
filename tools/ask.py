#!/usr/bin/env python3
"""Asks an OpenAI-compatible server one question, prints the answer as it streams, and how long it took.
usage: ask.py BASE_URL QUESTION   TTFT: send to first token. TPOT: (last token - first token) / (tokens - 1)."""
import json
import sys
import time
import urllib.request

base, question = sys.argv[1], sys.argv[2]
body = {"messages": [{"role": "user", "content": question}], "max_tokens": 96, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}}
request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(f"> {question}\n")
start = time.monotonic()
first = last = None
usage = {}
with urllib.request.urlopen(request, timeout=300) as answer:
    for line in answer:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            sys.exit(f"server: {chunk['error']['message']}")
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if choice["delta"].get("content"):
                last = time.monotonic()
                first = first or last
                print(choice["delta"]["content"], end="", flush=True)
tokens = usage.get("completion_tokens", 0)
if first is None:
    sys.exit("the answer was empty")
tpot = (last - first) / max(tokens - 1, 1)
print(f"\n\n{usage.get('prompt_tokens')} tokens in, {tokens} out; TTFT {1000 * (first - start):.0f} ms, "
      f"TPOT {1000 * tpot:.1f} ms ({1 / tpot if tpot > 0 else 0:.0f} tokens/s)")
