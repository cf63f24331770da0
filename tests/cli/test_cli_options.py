"""Flags, environment, config file: who wins, and what is refused."""
import tomllib

import pytest

from program import GOLDEN


def config(sixfold, *arguments, env=None, command="serve"):
    answer = sixfold(command, *arguments, "--print-config", env=env)
    assert answer.code == 0, answer.err
    return tomllib.loads(answer.out), answer.out


def test_print_config_needs_no_model_and_is_toml(sixfold):
    values, text = config(sixfold)
    assert values["port"] == 8000 and values["host"] == "127.0.0.1" and values["max-model-len"] == "auto"
    assert "# default" in text


def test_precedence_and_origins(sixfold, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("port = 1\nmax-num-seqs = 2\n\n[serve]\nthreads = 3\n\n[run]\nthreads = 9\n")
    values, text = config(sixfold, "--config", file, "--host", "::1", env={"SIXFOLD_PORT": "4"})
    assert (values["port"], values["max-num-seqs"], values["threads"], values["host"]) == (4, 2, 3, "::1")

    def origin(key):
        return next(line for line in text.splitlines() if line.startswith(key + " =")).split(" # ")[1]
    assert origin("port") == "environment SIXFOLD_PORT"
    assert origin("max-num-seqs") == f"file {file}:2"
    assert origin("threads") == f"file {file}:5"
    assert origin("host") == "flag --host"
    assert origin("kv-cache-memory").startswith("default")
    values, _ = config(sixfold, "--port", "5", env={"SIXFOLD_CONFIG": str(file), "SIXFOLD_PORT": "4"})
    assert values["port"] == 5


def test_what_is_printed_can_be_given_back(sixfold, tmp_path):
    values, text = config(sixfold, "--port", "7", "--served-model-name", "a", "--served-model-name", 'b "c"', "--dtype",
                          "float32", "--kv-cache-memory", "2GiB")
    file = tmp_path / "c.toml"
    file.write_text(text)
    again, _ = config(sixfold, "--config", file)
    assert again == values and again["dtype"] == "f32" and again["kv-cache-memory"] == 2 << 30


def test_both_spellings(sixfold):
    for arguments in (["--max-model-len", "9"], ["--context-length", "9"], ["--max_model_len=9"], ["-c", "9"]):
        assert config(sixfold, *arguments)[0]["max-model-len"] == 9
    assert config(sixfold, "--max-running-requests", "3")[0]["max-num-seqs"] == 3
    assert config(sixfold, "--chunked-prefill-size", "77")[0]["max-num-batched-tokens"] == 77
    assert config(sixfold, "--model-path", "m")[0]["model"] == "m"
    assert config(sixfold, "m")[0]["model"] == "m"


def test_a_key_never_shows(sixfold):
    assert "hush" not in config(sixfold, "--api-key", "hush")[1]


@pytest.mark.parametrize("arguments, env, file, said", [
    (["--prot", "1"], {}, "", "--port"),
    ([], {"SIXFOLD_MAX_NUM_SEQ": "1"}, "", "SIXFOLD_MAX_NUM_SEQS"),
    ([], {}, "max-num-seq = 1\n", "max-num-seqs"),
    ([], {}, "[server]\nport = 1\n", "serve"),
    ([], {}, "port = \"many\"\n", "0 to 65535"),
    ([], {}, "port = = 1\n", "c.toml:1"),
    (["--port", "-1"], {}, "", "0 to 65535"),
    (["--jsonl"], {}, "", "serve"),
])
def test_what_is_unknown_or_wrong_is_refused(sixfold, tmp_path, arguments, env, file, said):
    if file:
        (tmp_path / "c.toml").write_text(file)
        arguments = [*arguments, "--config", tmp_path / "c.toml"]
    answer = sixfold("serve", *arguments, "--print-config", env=env)
    assert answer.code == 2 and said in answer.err, answer.err
    assert answer.out == ""


@pytest.mark.parametrize("seed", [0, 4611686018427387909, -1, -(1 << 63), (1 << 63) - 1, (1 << 63) + 5, (1 << 64) - 1])
def test_a_seed_is_any_64_bits(sixfold, tmp_path, seed):
    """As in the body of a request, negative ones in two's complement; by each source, and as it is printed."""
    forms = [([f"--seed={seed}"], {}, ""), (["--seed", str(seed)], {}, ""), ([], {"SIXFOLD_SEED": str(seed)}, ""),
             (["--config", str(tmp_path / "c.toml")], {}, f'seed = "{seed}"\n')]
    if -(1 << 63) <= seed < 1 << 63:
        forms.append((["--config", str(tmp_path / "c.toml")], {}, f"seed = {seed}\n"))
    for flags, env, file in forms:
        (tmp_path / "c.toml").write_text(file)
        answer = sixfold("generate", GOLDEN / "llama_gqa", "--prompt-tokens", "1", "--max-tokens", "1", "--json", *flags, env=env)
        assert answer.json()["seed"] == seed % (1 << 64), answer.err
    printed = sixfold("generate", "m", f"--seed={seed}", "--print-config").out
    assert int(tomllib.loads(printed)["seed"]) == seed


@pytest.mark.parametrize("seed", [str(1 << 64), str(-(1 << 63) - 1), "1.5", "x", "", "0x10"])
def test_what_is_no_seed(sixfold, seed):
    answer = sixfold("generate", "m", "--prompt", "x", "--seed", seed)
    assert answer.code == 2 and "18446744073709551615" in answer.err and "64-bit integer" in answer.err, answer.err


@pytest.mark.parametrize("arguments, names, model", [
    (["MODEL", "--served-model-name", "a", "b"], ["a", "b"], "MODEL"), (["--served-model-name", "a", "b", "--model", "MODEL"], ["a", "b"], "MODEL"),
    (["--served-model-name", "a", "MODEL"], ["a"], "MODEL"), (["--served-model-name", "a", "b", "MODEL", "--port", "1"], ["a", "b"], "MODEL"),
    (["--served-model-name", "a, b", "c", "--served-model-name=d", "MODEL"], ["a", "b", "c", "d"], "MODEL"),
    (["MODEL", "--alias", "a", "org/b"], ["a", "org/b"], "MODEL"), (["--served-model-name", "a", "b"], ["a", "b"], ""),
    (["MODEL", "-a", "a", "a", "--port", "1", "--served-model-name", "b,a"], ["a", "b"], "MODEL")])
def test_names_of_a_served_model(sixfold, arguments, names, model):
    """vLLM's form, lists with commas, several flags; a path at the end is MODEL where there is no other."""
    path = str(GOLDEN / "llama_gqa")
    printed = tomllib.loads(sixfold("serve", *[path if word == "MODEL" else word for word in arguments], "--print-config").out)
    assert printed["served-model-name"] == names and printed["model"] == (path if model else "")


def test_names_that_are_none(sixfold):
    for name in ("", "a,,b", ",", b"\xff"):
        answer = sixfold("serve", "m", "--served-model-name", name)
        assert answer.code == 2 and "--served-model-name: " in answer.err, answer.err


def test_numbers_beyond_the_range_name_it(sixfold):
    for flags, said in ((["--max-tokens", "5000000000"], "from 1 to 1000000000"), (["--prompt-tokens", "1,2147483648"], "from 0 to 2147483647"),
                        (["--max-tokens", "1.0005k"], "an integer"), (["--kv-cache-memory", "100T"], "70368744177664 bytes")):
        answer = sixfold("generate", "m", *flags)
        assert answer.code == 2 and said in answer.err, answer.err
    assert tomllib.loads(sixfold("generate", "m", "--max-tokens", "1.001k", "--print-config").out)["max-tokens"] == 1001


def test_a_config_file_that_is_not_there(sixfold, tmp_path):
    answer = sixfold("serve", "--config", tmp_path / "none.toml", "--print-config")
    assert answer.code == 3 and "none.toml" in answer.err


def test_variables_of_a_kubernetes_service_named_sixfold_are_passed_over_and_named_once(sixfold):
    service = {"SIXFOLD_SERVICE_HOST": "10.0.0.1", "SIXFOLD_SERVICE_PORT": "80", "SIXFOLD_SERVICE_PORT_HTTP": "80",
               "SIXFOLD_PORT": "tcp://10.0.0.1:80", "SIXFOLD_PORT_80_TCP": "tcp://10.0.0.1:80",
               "SIXFOLD_PORT_80_TCP_ADDR": "10.0.0.1", "SIXFOLD_PORT_80_TCP_PROTO": "tcp"}
    for command in ("serve", "doctor"):
        answer = sixfold(command, "--print-config", env=service)
        assert answer.code == 0, answer.err
        assert tomllib.loads(answer.out)["port"] == 8000
        for name in service:
            assert answer.err.replace(",", " ").replace(":", " ").split().count(name) == 1, answer.err
    answer = sixfold("bytes", "tp", "--ranks", 8, "--seq", 4096, "--hidden", 8192, env=service)
    assert answer.code == 0 and answer.err.count("SIXFOLD_SERVICE_HOST") == 1
    wrong = sixfold("doctor", env=service | {"SIXFOLD_PROT": "1"})
    assert wrong.code == 2 and "SIXFOLD_PROT (did you mean 'SIXFOLD_PORT'?)" in wrong.err
