#!/usr/bin/env python3
"""Writes a trained toy as a Hugging Face folder, and checks it there.

The check: transformers loads the folder, and its logits are those of model.py in f32. Prints the
held-out loss of the bf16 weights and how evenly the experts are used.
"""
import argparse
import json
import pathlib

import safetensors.torch
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers import PreTrainedTokenizerFast

from corpus import END, TURN_END
from model import Shape, Toy
from train import held_out

TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def write(model, corpus, out):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(corpus / "tokenizer.json"), eos_token=TURN_END, pad_token=END,
        clean_up_tokenization_spaces=False, model_max_length=model.shape.max_positions)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out, save_jinja_files=False)
    settings = json.loads((out / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every version knows
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    end, turn_end = tokenizer.convert_tokens_to_ids([END, TURN_END])
    config = model.shape.hf_config(bos=end, eos=turn_end, pad=end)
    config.save_pretrained(out)
    settings = json.loads((out / "config.json").read_text())
    settings |= {"num_experts": model.shape.experts, "rope_theta": model.shape.rope_theta}
    # Both under the older names as well: a reader that knows only those would take its defaults.
    (out / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, bos_token_id=end,
                     eos_token_id=[turn_end, end], pad_token_id=end).save_pretrained(out)
    safetensors.torch.save_file(model.state_dict_hf(), str(out / "model.safetensors"),
                                metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)


@torch.inference_mode()
def check(model, corpus, out):
    """`model` holds the rounded weights; the largest difference of a logit from transformers'."""
    other = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with open(corpus / "heldout.jsonl", encoding="utf-8") as file:
        text = json.loads(next(line for line in file if '"story"' in line))["text"]
    ids = AutoTokenizer.from_pretrained(out)(text, return_tensors="pt").input_ids
    plain = Tokenizer.from_file(str(corpus / "tokenizer.json")).encode(text).ids
    assert ids[0].tolist() == plain, "the saved tokenizer differs"
    mine, theirs = model(ids)[0], other(ids).logits
    return (mine - theirs).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", help="last.pt of train.py; of several, the mean")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    out, corpus = pathlib.Path(args.out), pathlib.Path(args.corpus)
    out.mkdir(parents=True, exist_ok=True)
    states = [torch.load(checkpoint) for checkpoint in args.checkpoints]
    model = Toy(Shape())
    model.load_state_dict({name: sum(state["model"][name] for state in states) / len(states)
                           for name in states[0]["model"]})
    write(model, corpus, out)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    for state in states:
        print(f"steps {state['step']}, tokens {state['tokens']}, minutes {state['minutes']:.1f}")
    print(f"largest difference from transformers, f32: {check(model, corpus, out):.1e}")
    for kind in ("story", "alice", "austen"):
        nats, bits, tokens, counts = held_out(model, corpus, kind)
        share = counts / counts.sum(dim=1, keepdim=True)
        print(f"held-out {kind}: {nats:.4f} nats/token, {bits:.4f} bits/byte, {tokens} tokens; "
              f"an expert's share of its layer {share.min():.2%} to {share.max():.2%}")


if __name__ == "__main__":
    main()
