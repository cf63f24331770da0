"""Help and messages: what a newcomer reads when something is not as he thought."""
import re
import shlex

import pytest

ALL_COMMANDS = ["run", "serve", "inspect", "doctor", "generate", "logits", "tokenize", "detokenize", "render", "dump", "perplexity", "bytes",
                "layout", "verify", "trace"]


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_help_of_a_command_is_its_own(sixfold, command):
    """`help X` is `X --help`, and tells of no option and no form of another command."""
    text = sixfold(command, "--help").out
    assert sixfold("help", command).out == text
    words = " ".join(text.split())
    lists = re.findall(r"^  ((?:-\w, )*--[a-z0-9-]+)", text, re.M)
    own = {flag for names in [*lists, "-h, --help"] for flag in names.split(", ")}
    own |= {alias for group in re.findall(r"\(also ([^)]*)\)", words) for alias in group.split(", ")}
    own |= {"--no-" + flag[2:] for flag in own}
    mentioned = set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*", words)) - {"-n", "-H"}  # of mpirun and curl
    assert mentioned <= own, mentioned - own
    assert not re.search(rf"sixfold (?!{command}\b)({'|'.join(ALL_COMMANDS)})\b", text)
    others = [name for name in ALL_COMMANDS if name != command]
    assert not re.search(rf"(?<![\w-])({'|'.join(others)})(:| --|\))", words.split("usage:", 1)[1]), words
    for group, commands in {"Sampling": {"run", "generate"}, "Server": {"serve"}, "Engine": {"run", "serve", "generate"}}.items():
        assert (f"\n{group}:\n" in text) == (command in commands), group


def test_help_of_help(sixfold):
    assert sixfold("help").out == sixfold("--help").out == sixfold("help", "help").out
    unknown = sixfold("help", "sevre")
    assert unknown.code == 2 and "'serve'" in unknown.err
    assert sixfold("help", "serve", "run").code == 2


def test_help_says_what_render_does_by_default(sixfold):
    words = " ".join(sixfold("help", "render").out.split())
    assert "default: on; --no-add-generation-prompt" in words and "add_generation_prompt is true" in words


def test_counts_of_one(sixfold, tiny, tmp_path):
    """No message and no table says "1 ranks"."""
    text = tmp_path / "text"
    text.write_text("x")
    answers = [sixfold("layout", tiny), sixfold("layout", tiny, "--tokens", "1", "-tp", "2"), sixfold("layout", tiny, "--tokens", "5", "-tp", "2"),
               sixfold("trace", tiny, "--prompt-tokens", "1", "--token", "0"), sixfold("trace", tiny, "--prompt-tokens", "1", "--token", "7"),
               sixfold("trace", tiny, "--prompt-tokens", "1", "--token", "0", "--svg"), sixfold("layout", tiny, "--nodes", "3"),
               sixfold("generate", tiny, "--prompt-tokens", "1", "--max-tokens", "1"), sixfold("generate", tiny, "--prompt-tokens", "1", "--dry-run"),
               sixfold("verify", tiny, "-tp", "2", "--prompt-lengths", "1", "--decode-steps", "0"),
               sixfold("bytes", "tp", "--ranks", "1", "--seq", "1", "--hidden", "8"), sixfold("bytes", "pp", "--ranks", "1", "--seq", "1", "--hidden", "8"),
               sixfold("bytes", "ep", "--ranks", "1", "--seq", "1", "--hidden", "8", "--top-k", "1"), sixfold("inspect", tiny)]
    for answer in answers:
        said = answer.out + answer.err
        assert said
        wrong = re.findall(r"(?<![\w.,:-])1 (?:\w+ )?(?:rank|token|layer|crossing|operation|request|node|row|stage|replica|layout|time|step|sequence|tensor|"
                           r"file|window|thread|head|expert)s\b", said)
        assert not wrong, (wrong, said)
    assert "1 rank, tp1" in answers[0].out


@pytest.mark.parametrize("arguments", [["hi"], ["hi", "there"], ["Why is the sky blue?"], ["what is 1/2"], ["don't"]])
def test_a_prompt_in_the_place_of_the_model(sixfold, tmp_path, arguments):
    answer = sixfold("run", *arguments, cwd=tmp_path)
    assert answer.code == 3 and "no such file" in answer.err, answer.err
    hinted = shlex.split(re.search(r"sixfold run (--prompt '.*') \(", answer.err).group(1))
    assert hinted == ["--prompt", " ".join(arguments)] and "quotes" in answer.err


def test_a_prompt_without_quotes(sixfold, tmp_path):
    answer = sixfold("run", "Why", "is", "the", "sky", "blue?", cwd=tmp_path)
    assert answer.code == 2 and "'the'" in answer.err and "quotes" in answer.err, answer.err
    for path in ("models/no-such.gguf", "./none", "no-such.safetensors"):
        assert "--prompt" not in sixfold("run", path, cwd=tmp_path).err
    assert "--prompt" not in sixfold("serve", "hi", cwd=tmp_path).err


FOLDERS = [
    ([], ["is empty"]),
    (["notes.txt"], ["nothing in it"]),
    (["tokenizer.json"], ["a tokenizer without weights"]),
    (["config.json", "tokenizer.json", "tokenizer_config.json"], ["a config and a tokenizer without weights"]),
    (["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"], ["first part", "m-00001-of-00003.gguf"]),
    (["m-00002-of-00003.gguf"], ["without the first"]),
    (["a.gguf", "b.gguf"], ["name it: a.gguf, b.gguf"]),
    (["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], ["shards without model.safetensors.index.json"]),
    (["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"], ["LoRA adapter", "adapter_model.safetensors", "merge"]),
    (["config.json", "tokenizer.json", "pytorch_model.bin"], ["PyTorch weights", "pytorch_model.bin", "safetensors"]),
    (["config.json", "consolidated.safetensors"], ["name it: consolidated.safetensors"]),
    (["inner/config.json", "README.md"], ["inner"]),
]


@pytest.mark.parametrize("names, said", FOLDERS, ids=[" ".join(row[0]) or "empty" for row in FOLDERS])
def test_folders_without_a_model_say_what_is_there_and_what_is_needed(sixfold, tmp_path, names, said):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    for arguments in (["run", folder, "hi"], ["serve", folder, "--port", "0"], ["generate", folder, "--prompt", "x"], ["inspect", folder]):
        answer = sixfold(*arguments)
        assert answer.code == 3 and "no model is in this folder" in answer.err and "model.safetensors" in answer.err, answer.err
        for text in said:
            assert text in answer.err, answer.err


def test_little_memory_for_keys_and_values_is_told(sixfold, smollm2):
    """SmolLM2 keeps 30 layers x 2 x 3 heads x 64 in bf16, 23,040 bytes a token, in blocks of 16 tokens."""
    blocks = (1 << 20) // (23040 * 16)
    answer = sixfold("generate", smollm2, "--prompt-tokens", "1", "--max-tokens", "1", "--kv-cache-memory", "1M")
    assert answer.code == 0
    warning = next(line for line in answer.err.splitlines() if "warning" in line)
    assert "on each rank" in warning and f"{blocks * 16} tokens" in warning and "1 sequence at a time" in warning, warning
    needed = re.search(r"--kv-cache-memory (\d+)", warning).group(1)
    assert int(needed) == 8192 * 23040
    enough = sixfold("generate", smollm2, "--prompt-tokens", "1", "--max-tokens", "1", "--kv-cache-memory", needed)
    assert enough.code == 0 and "warning" not in enough.err, enough.err
    assert "on each rank" in " ".join(sixfold("help", "serve").out.split())
