"""Many layouts with context parallelism against one rank, bit for bit: `verify_context.py BINARY` is a part of `make verify-all`.
Prompts of 1, cp-1, cp, 2cp±1, 300 and 1,000 tokens for every cp, chunks of 16 and of 256, prompts cut inside a chunk, 64 decode
steps, every two values of two axes; then 16,384 tokens once a form at cp 4. Models: dense, experts, latent attention, windows,
sinks."""
import json
import pathlib
import sys
import tempfile
import time

if __name__ == "__main__":
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import tiny_models  # noqa: E402

MODELS = ["llama_gqa", "olmoe", "deepseek_v3", "mistral_window", "gpt_oss"]
EXPERTS = {"olmoe", "deepseek_v3", "gpt_oss"}
FORMS = ["p2p", "all_gather", "a2a", "a2a+p2p", "striped"]
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 300, 1000]  # 1, cp-1, cp, 2cp-1, 2cp+1 of cp 2, 3, 4 and 8


def sample(name):
    """A dozen layouts in which each form, cp and axis comes twice or more; others for every model."""
    six_heads = name in ("deepseek_v3", "gpt_oss")
    some = 3 if six_heads else 4  # ranks that can share the heads out
    lines = ["-cp 8", "-cp 3 --cp-comm-type striped -tp 2 --sequence-parallel", f"-cp {some} --cp-comm-type a2a -pp 2",
             "-cp 4 --cp-comm-type all_gather -tp 2 -dp 2 --nodes 4", "--mesh cp4,pp2,tp2 --cp-comm-type a2a+p2p --nodes 2",
             "--mesh tp2,cp2,dp2,pp2 --sequence-parallel --nodes 2", "-cp 8 --cp-comm-type striped",
             "-cp 8 --cp-comm-type all_gather -pp 2", "--mesh dp2,cp3,tp2 --cp-comm-type p2p", "-cp 4 --cp-kv-cache-interleave-size 48",
             "-cp 2 --cp-comm-type a2a -tp 3" if six_heads else "-cp 2 --cp-comm-type a2a -tp 2",
             "-cp 6 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 3,2" if six_heads else
             "-cp 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2,2"]
    if name in EXPERTS:
        lines += ["-cp 4 --ep 4 --nodes 2", "--mesh tp2,cp2,dp2 --sequence-parallel --ep 4 --etp 2 --nodes 4 --cp-comm-type striped",
                  "--mesh cp2,tp2,pp2 --ep 2 --etp 2 --cp-comm-type a2a+p2p", "-cp 3 --ep 3 --cp-comm-type all_gather"]
    return lines


def verify(sixfold, model, *flags):
    start = time.monotonic()
    answer = sixfold("verify", model, "--json", "--quiet", *flags, timeout=3600)
    if answer.code != 0:
        sys.exit(f"{model.name} {' '.join(map(str, flags))}: exit {answer.code}\n{answer.err}")
    said = json.loads(answer.out)
    print(f"{model.name}: {said['passed']} layouts equal, {' '.join(map(str, flags))}, {time.monotonic() - start:.0f} s", flush=True)


def main():
    from program import Program
    sixfold = Program(str(pathlib.Path(sys.argv[1]).resolve()))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        models = {name: tiny_models.copy(name, folder / name, max_position_embeddings=65536) for name in MODELS}
        lengths = ",".join(map(str, LENGTHS))
        for model in models.values():
            for chunk in (16, 256):
                verify(sixfold, model, "--layouts", "covering", "--attention-chunk", chunk, "--prompt-lengths", lengths,
                       "--prefill-chunk", 600, "--decode-steps", 64)
            verify(sixfold, model, "--layouts", "covering", "--numerics", "fast", "--prompt-lengths", "1,3,17,300", "--decode-steps", 16)
        (folder / "forms").write_text("".join(f"-cp 4 --cp-comm-type {form}\n" for form in FORMS))
        verify(sixfold, models["llama_gqa"], "--layouts", folder / "forms", "--attention-chunk", 256, "--prompt-lengths", 16384,
               "--prefill-chunk", 16384, "--decode-steps", 64)


if __name__ == "__main__":
    main()
