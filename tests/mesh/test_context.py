"""Context parallelism with ranks as threads: who holds what and what moves, that no bit depends on it, what it holds in memory.
`verify_context.py` runs many more layouts, and longer prompts."""
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import layout_math
import mpi_job
import serving
import tiny_models
import verify_context
from program import GOLDEN
from test_layouts import check_stats, flags_of, parsed, rows_of, world_of

FORMS = ["p2p", "all_gather", "a2a", "a2a+p2p", "striped"]
MESHES = [  # mesh, --sequence-parallel, nodes
    ("cp2", False, 1), ("cp3", False, 3), ("cp4", False, 2), ("tp2,cp2", True, 1), ("cp4,pp2", False, 4), ("cp2,dp2", False, 2),
    ("tp2,cp2,dp2,pp2", True, 2), ("pp2,cp3,tp2", False, 1), ("cp8", False, 2)]


def refused_for_heads(answer):
    return answer.code == 2 and "query heads" in answer.err and "--hierarchical-context-parallel-sizes" in answer.err


@pytest.fixture(scope="module")
def long_models(tmp_path_factory):
    """name → the golden model with room for long prompts."""
    folder, made = tmp_path_factory.mktemp("long"), {}

    def model(name):
        if name not in made:
            made[name] = tiny_models.copy(name, folder / name, max_position_embeddings=65536)
        return made[name]
    return model


class TestWhatALayoutIs:
    @pytest.mark.parametrize("mesh, sequence_parallel, nodes", MESHES)
    @pytest.mark.parametrize("name", ["llama_gqa", "mistral_window", "olmoe", "qwen3_moe_bf16", "deepseek_v3_plain"])
    def test_shards_and_bytes_follow_the_rules(self, sixfold, config, name, mesh, sequence_parallel, nodes):
        world, ran = world_of(mesh), 0
        for form in FORMS:
            for rows, chunk in ((1, 256), (37, 16), (300, 16), (1000, 256)):
                answer = sixfold("layout", GOLDEN / name, *flags_of(mesh, sequence_parallel, nodes), "--cp-comm-type", form,
                                 "--attention-chunk", chunk, "--tokens", rows, "--json")
                if form == "a2a" and refused_for_heads(answer):
                    continue
                got, ran = answer.json(), ran + 1
                want = layout_math.Layout(layout_math.Model(config(GOLDEN / name)), parsed(mesh), [world // nodes] * nodes,
                                          sequence_parallel, form=form, chunk=chunk)
                for rank, shard in enumerate(got["ranks"]):
                    expected = want.shard(rank)
                    assert {key: shard[key] for key in expected} == expected
                assert rows_of(got["collectives"]) == want.step([rows] * want.size["dp"]), form
                assert got["context"]["hierarchical_sizes"] == [want.ulysses, want.size["cp"] // want.ulysses]
        assert ran >= 16

    def test_sizes_of_both_levels_may_be_given(self, sixfold, tiny, config):
        for u, r in ((1, 4), (2, 2), (4, 1)):
            got = sixfold("layout", tiny, "-cp", 4, "--cp-comm-type", "a2a+p2p", "--hierarchical-context-parallel-sizes", f"{u},{r}",
                          "--tokens", 100, "--attention-chunk", 16, "--json").json()
            want = layout_math.Layout(layout_math.Model(config(tiny)), [("cp", 4)], [4], form="a2a+p2p", chunk=16, ulysses=u)
            assert rows_of(got["collectives"]) == want.step([100]) and got["context"]["hierarchical_sizes"] == [u, r]

    def test_groups_along_cp(self, sixfold, tiny):
        got = sixfold("layout", tiny, "--mesh", "tp2,cp2,dp2", "--nodes", 2, "--json").json()
        assert [group["ranks"] for group in got["groups"]["cp"]] == [[0, 2], [1, 3], [4, 6], [5, 7]]
        assert all(group["links"] == ["shm"] for group in got["groups"]["cp"])


class TestHowItIsWritten:
    @pytest.mark.parametrize("flags, same", [
        ("--context-parallel-size 2 -tp 2", "--mesh tp2,cp2"), ("-cp 2 -dp 2 -tp 2 -pp 2", "--mesh tp2,cp2,dp2,pp2"),
        ("--cp-size 3", "--mesh cp3"), ("--cp 4 --cp_comm_type all_gather", "--mesh cp4 --cp-comm-type all_gather"),
        ("-cp 2 --cp-kv-cache-interleave-size 512", "--mesh cp2 --cp_kv_cache_interleave_size=512")])
    def test_other_spellings_mean_the_same(self, sixfold, tiny, flags, same):
        one, two = (sixfold("layout", tiny, *f.split(), "--tokens", 999, "--json").json() for f in (flags, same))
        assert one == two

    def test_the_environment_and_a_file_can_say_it(self, sixfold, tiny, tmp_path):
        want = sixfold("layout", tiny, "-cp", 2, "--cp-comm-type", "striped", "--json").json()
        env = {"SIXFOLD_CP_SIZE": "2", "SIXFOLD_CP_COMM_TYPE": "striped"}
        assert sixfold("layout", tiny, "--json", env=env).json() == want
        file = tmp_path / "settings.toml"
        file.write_text('context-parallel-size = 2\ncp-comm-type = "striped"\n')
        assert sixfold("layout", tiny, "--json", "--config", file).json() == want

    @pytest.mark.parametrize("flags, words", [
        ("--mesh cp2 -cp 2", ["--mesh", "-cp", "exclude"]),
        ("-cp 2 --cp-comm-type ring", ["--cp-comm-type", "p2p, all_gather, a2a, a2a+p2p, striped"]),
        ("-cp 3 --cp-comm-type a2a", ["3 ranks would share the 4 query heads", "p2p, all_gather or striped"]),
        ("-tp 2 -cp 4 --cp-comm-type a2a", ["4 ranks would share the 2 query heads"]),
        ("-cp 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 3,2", ["3 times 2", "1,4 or 2,2 or 4,1"]),
        ("-cp 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2", ["two sizes U,R"]),
        ("-cp 4 --hierarchical-context-parallel-sizes 2,2", ["a2a+p2p alone", "p2p"]),
        ("-cp 2 --cp-kv-cache-interleave-size 1", ["whole attention chunks", "multiple of 256", "--numerics fast"]),
        ("-cp 2 --cp-kv-cache-interleave-size 24 --attention-chunk 16", ["multiple of 16"]),
        ("-cp 2 --cp-kv-cache-interleave-size 3 --numerics fast", ["1, 2, 4, 8 or 16"]),
        ("-cp 0", ["-cp"])])
    def test_what_cannot_run_is_refused_with_what_to_type(self, sixfold, tiny, flags, words):
        answer = sixfold("layout", tiny, *flags.split())
        assert answer.code == 2 and answer.out == "" and len(answer.err.splitlines()) == 1, answer.err
        for word in words:
            assert word in answer.err, answer.err


class TestSameBits:
    @pytest.mark.parametrize("name", verify_context.MODELS)
    def test_forms_and_mixes(self, sixfold, long_models, tmp_path, name):
        """Prompts of 1, cp-1, cp, 2cp±1 and 300 tokens for every cp here, cut inside a chunk, beside others that decode."""
        file = tmp_path / "layouts"
        lines = verify_context.sample(name)
        file.write_text("\n".join(lines) + "\n")
        said = sixfold("verify", long_models(name), "--layouts", file, "--attention-chunk", 16, "--prompt-lengths",
                       "1,2,3,4,5,7,8,9,15,16,17,300", "--prefill-chunk", 187, "--decode-steps", 64, "--json", "--quiet").json()
        assert said["passed"] == len(lines) and said["prompts"][-1] == 300
        assert all(row["steps"] == 66 and row["counted_bytes"] > 0 for row in said["layouts"])

    @pytest.mark.parametrize("name", ["llama_gqa", "gpt_oss"])
    def test_chunks_of_256(self, sixfold, long_models, tmp_path, name):
        (tmp_path / "layouts").write_text("-cp 4\n-cp 2 --cp-comm-type striped -tp 2\n-cp 3 --cp-comm-type all_gather -pp 2\n")
        said = sixfold("verify", long_models(name), "--layouts", tmp_path / "layouts", "--attention-chunk", 256, "--prompt-lengths",
                       "1,300,1000", "--prefill-chunk", 900, "--decode-steps", 8, "--json", "--quiet").json()
        assert said["passed"] == 3 and said["attention_chunk"] == 256

    @pytest.mark.parametrize("name", ["llama_gqa", "mistral_window"])
    def test_steps_of_a_chunk_or_two(self, sixfold, long_models, tmp_path, name):
        """Owners alternate, so that a query's partial results wait for many others."""
        (tmp_path / "layouts").write_text("-cp 4\n-cp 3 --cp-comm-type striped\n-cp 8 --cp-comm-type all_gather\n-cp 2 --cp-comm-type a2a\n")
        said = sixfold("verify", long_models(name), "--layouts", tmp_path / "layouts", "--prompt-lengths", "500,1,77,261",
                       "--prefill-chunk", 23, "--decode-steps", 40, "--json", "--quiet").json()
        assert said["passed"] == 4 and said["attention_chunk"] == 16

    @pytest.mark.parametrize("form", FORMS)
    def test_logits_files(self, sixfold, long_models, tmp_path, form):
        """Prefill in pieces that begin inside a chunk."""
        tokens = ",".join(str(7 * i % 89) for i in range(333))
        ask = ["logits", long_models("llama_gqa"), "--tokens", tokens, "--attention-chunk", 16, "--output"]
        assert sixfold(*ask, tmp_path / "one").code == 0
        for mesh, more in (("cp2", []), ("cp4", ["-b", 100]), ("tp2,cp2,pp2", ["-b", 57, "--sequence-parallel"])):
            stats = tmp_path / "stats"
            answer = sixfold(*ask, tmp_path / "many", "--mesh", mesh, "--cp-comm-type", form, "--stats", stats, *more)
            assert answer.code == 0, answer.err
            assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes(), mesh
            check_stats(stats, world_of(mesh))
            assert json.loads(stats.read_text())["cp_comm_type"] == form

    @pytest.mark.parametrize("name", ["llama_gqa", "deepseek_v3", "mistral_window"])
    def test_fast_mode_deals_tokens(self, sixfold, long_models, tmp_path, name):
        lines = ["-cp 2 --cp-comm-type striped", "-cp 4 -tp 2 --sequence-parallel --cp-comm-type striped",
                 "-cp 3 --cp-kv-cache-interleave-size 1", "-cp 4 -pp 2 --cp-comm-type all_gather --cp-kv-cache-interleave-size 8"]
        (tmp_path / "layouts").write_text("\n".join(lines) + "\n")
        said = sixfold("verify", long_models(name), "--layouts", tmp_path / "layouts", "--numerics", "fast", "--prompt-lengths",
                       "1,3,17,300", "--prefill-chunk", 187, "--json", "--quiet").json()
        assert said["passed"] == len(lines)

    @pytest.mark.skipif(mpi_job.MPIRUN is None, reason="no mpirun.openmpi here (openmpi-bin)")
    def test_ranks_as_processes(self, sixfold, long_models, tmp_path):
        lines = [f"--mesh tp2,cp2 --sequence-parallel --cp-comm-type {form}" for form in FORMS] + ["--mesh cp4 --nodes 2"]
        (tmp_path / "layouts").write_text("\n".join(lines) + "\n")
        code, out, err = mpi_job.run(4, [sixfold.binary, "verify", long_models("llama_gqa"), "--layouts", tmp_path / "layouts",
                                         "--prompt-lengths", "1,5,300", "--decode-steps", 8, "--json"], tmp_path)
        assert code == 0, err
        said = json.loads(out)
        assert said["passed"] == len(lines) and all(row["bytes_equal"] for row in said["layouts"])


class TestCommands:
    LAYOUTS = [("-cp 2", 2), ("-cp 4 --cp-comm-type a2a -dp 2", 8),
               ("-tp 2 -cp 2 -pp 2 --sequence-parallel --cp-comm-type striped", 8)]

    @pytest.mark.parametrize("flags, world", LAYOUTS)
    def test_generate(self, sixfold, talkative, tmp_path, flags, world):
        ask = ["generate", talkative, "--prompt", "Once upon a time " * 9, "--max-tokens", 40, "--seed", 7, "-n", 3, "--logprobs", 2,
               "--ignore-eos", "--attention-chunk", 16, "--json"]
        assert sixfold(*ask, *flags.split(), "--stats", tmp_path / "stats").json() == sixfold(*ask).json()
        check_stats(tmp_path / "stats", world)

    @pytest.mark.parametrize("flags", [flags for flags, _ in LAYOUTS])
    def test_serve_answers_many_at_once_as_one_rank_does(self, sixfold, talkative, flags):
        asks = [{"prompt": [1 + n, 2, 3] * (n * n + 1), "max_tokens": 20 + 9 * n, "seed": n, "temperature": n % 3 * 0.6, "logprobs": 3,
                 "ignore_eos": True} for n in range(9)]

        def answers(url, at_once):
            with ThreadPoolExecutor(at_once) as pool:
                return [answer["choices"] for answer in pool.map(lambda ask: serving.complete(url, **ask), asks)]

        serve = [talkative, "--attention-chunk", 16, "--max-model-len", 2048]
        with serving.Server(sixfold, *serve) as server:
            one_by_one = answers(server.url, 1)
        with serving.Server(sixfold, *serve, *flags.split()) as server:
            assert answers(server.url, len(asks)) == one_by_one


    @pytest.mark.parametrize("flags", ["-cp 3 --kv-cache-memory 70K", "-cp 2 --cp-comm-type striped --kv-cache-memory 100K -b 40",
                                       "-cp 4 -pp 2 --kv-cache-memory 40K", "-cp 4 -dp 2 --cp-comm-type all_gather --kv-cache-memory 64K"])
    def test_little_memory_moves_keys_to_other_ranks_and_no_bit(self, sixfold, talkative, flags):
        """Owners run full at different times, and requests are preempted."""
        asks = [{"prompt": [(7 * n + i) % 90 for i in range((1, 16, 40, 200, 330)[n % 5])], "max_tokens": 20 + 37 * n % 100, "seed": n,
                 "temperature": 0.7 * (n % 2), "ignore_eos": True} for n in range(20)]
        serve = [talkative, "--attention-chunk", 16, "--max-model-len", 512]
        answers = []
        for more in ([], flags.split()):
            with serving.Server(sixfold, *serve, *more) as server, ThreadPoolExecutor(len(asks)) as pool:
                answers.append([answer["choices"] for answer in pool.map(lambda ask: serving.complete(server.url, **ask), asks)])
        assert answers[0] == answers[1]


class TestMemory:
    TOKENS = 4096

    def ranks(self, sixfold, model, folder, *flags):
        tokens = ",".join(str(7 * i % 89) for i in range(self.TOKENS))
        answer = sixfold("logits", model, "--tokens", tokens, "-b", self.TOKENS, "--output", folder / "logits", "--stats",
                         folder / "stats", *flags)
        assert answer.code == 0, answer.err
        return json.loads((folder / "stats").read_text())["ranks"]

    @pytest.mark.parametrize("form", FORMS)
    def test_keys_at_rest_fall_and_few_are_under_way(self, sixfold, config, long_models, tmp_path, form):
        model = long_models("llama_gqa")
        shape = layout_math.Model(config(model))
        whole = self.TOKENS * shape.kv_heads * shape.position_elements * shape.travel  # of a layer
        for cp in (2, 4):
            for rank in self.ranks(sixfold, model, tmp_path, "-cp", cp, "--cp-comm-type", form):
                assert rank["kv_bytes"] == whole * len(shape.sparse) // cp
                block = rank["kv_bytes"] / rank["kv_layers"]
                under_way = rank["kv_transit_bytes"] / block
                if form == "p2p":
                    assert under_way <= 2.2
                elif form == "all_gather":
                    assert under_way == pytest.approx(cp, rel=0.01)  # all of the layer


class TestBalance:
    def cuts(self, sixfold, *flags):
        said = sixfold("verify", GOLDEN / "llama_gqa", "--balance", "--json", *flags).json()
        return said, {cut["cut"]: cut for cut in said["cuts"]}

    @pytest.mark.parametrize("cp", [2, 3, 4, 8])
    def test_pairs_of_every_rank(self, sixfold, cp):
        tokens = 2 * cp * 16 * 8
        said, cuts = self.cuts(sixfold, "-cp", cp, "--tokens", tokens)
        assert said["cp"] == cp and said["tokens"] == tokens and said["attention_chunk"] == 16
        own = {"contiguous": lambda p: p * cp // tokens, "striped": lambda p: p % cp,
               "zigzag": lambda p: min(run := p * 2 * cp // tokens, 2 * cp - 1 - run)}
        for name, rank_of in own.items():
            pairs = [0] * cp
            for position in range(tokens):
                pairs[rank_of(position)] += position + 1
            assert cuts[name]["pairs"] == pairs
        assert [round(r) for r in cuts["contiguous"]["ratio"]] == [2 * i + 1 for i in range(cp)]
        assert len(set(cuts["zigzag"]["pairs"])) == 1
        assert cuts["striped"]["imbalance"] < 1.01

    def test_the_table_says_1_3_5_7(self, sixfold):
        answer = sixfold("verify", GOLDEN / "llama_gqa", "-cp", 4, "--balance", "--attention-chunk", 256)
        assert answer.code == 0 and "1.00 : 3.00 : 5.00 : 7.00" in answer.out and answer.out.count("1.00 : 1.00 : 1.00 : 1.00") == 2

    def test_wants_several_ranks_and_one_length(self, sixfold):
        for flags, word in ((["-tp", 2], "--context-parallel-size"), (["-cp", 2, "--tokens", "1,2"], "--tokens")):
            answer = sixfold("verify", GOLDEN / "llama_gqa", "--balance", *flags)
            assert answer.code == 2 and word in answer.err
