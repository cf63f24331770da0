"""Layouts with ranks as threads: what they are, which are refused, and that all give the same bits."""
import itertools
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import layout_math
import serving
from program import GOLDEN

MESHES = [  # mesh, --sequence-parallel, nodes
    ("tp1", False, 1), ("tp2", False, 1), ("tp2", True, 1), ("tp3", False, 1), ("tp3", True, 3), ("tp4", False, 4),
    ("tp4", True, 2), ("pp2", False, 2), ("dp3", False, 1), ("dp4", False, 2), ("tp2,dp2", True, 2), ("dp2,tp2", False, 2),
    ("tp2,pp2", True, 4), ("pp2,tp4,dp2", False, 4), ("tp3,dp2,pp2", True, 2), ("dp2,pp2,tp3", False, 3),
    ("tp4,dp4,pp2", True, 8)]
MODELS = ["llama_gqa", "llama_mqa", "llama_odd", "llama_bf16", "qwen3", "mixtral", "olmoe", "olmoe_clip", "qwen3_moe",
          "qwen3_moe_mixed", "deepseek_v2_group", "deepseek_v3_plain"]


def flags_of(mesh, sequence_parallel=False, nodes=1):
    return ["--mesh", mesh] + ["--sequence-parallel"] * sequence_parallel + (["--nodes", str(nodes)] if nodes > 1 else [])


def parsed(mesh):
    return [(axis, int(size)) for axis, size in re.findall(r"([a-z]+)(\d+)", mesh)]


def world_of(mesh):
    return math.prod(size for _, size in parsed(mesh))


def expected_layout(config, mesh, sequence_parallel=False, nodes=1):
    world = world_of(mesh)
    return layout_math.Layout(layout_math.Model(config), parsed(mesh), [world // nodes] * nodes, sequence_parallel)


def rows_of(collectives, count="count", amount="bytes"):
    return {(row["axis"], row["op"], row["link"]): [row[count], row[amount]] for row in collectives}


EXPERT_MESHES = [  # mesh, --sequence-parallel, nodes, ep, etp, backend
    ("dp4", False, 1, 4, None, None), ("dp4", False, 2, 4, None, None), ("dp4", False, 2, 4, None, "flat"),
    ("tp2,dp2", True, 2, 4, 1, None), ("tp2,dp4", False, 4, 4, 2, None), ("tp2,dp4", False, 1, 2, 2, None),
    ("tp4,dp2,pp2", True, 4, 4, None, None), ("pp2,tp2,dp4", False, 2, 4, 2, "flat"), ("tp2", False, 1, 1, 1, None),
    ("tp3,dp2", False, 3, 3, None, None), ("dp3,tp2", True, 2, None, None, None), ("tp2,dp4", True, 2, None, 4, None)]


class TestWhatALayoutIs:
    @pytest.mark.parametrize("mesh, sequence_parallel, nodes, ep, etp, backend", EXPERT_MESHES)
    @pytest.mark.parametrize("name", ["mixtral", "olmoe", "qwen3_moe_mixed", "qwen3_moe_bf16"])
    def test_experts_follow_the_rules(self, sixfold, config, name, mesh, sequence_parallel, nodes, ep, etp, backend):
        world = world_of(mesh)
        want = layout_math.Layout(layout_math.Model(config(GOLDEN / name)), parsed(mesh), [world // nodes] * nodes,
                                  sequence_parallel, ep, etp, None if backend is None else backend == "hierarchical")
        flags = [*flags_of(mesh, sequence_parallel, nodes)]
        for flag, value in (("--ep", ep), ("--etp", etp), ("--all2all-backend", backend)):
            flags += [flag, value] if value else []
        got = sixfold("layout", GOLDEN / name, *flags, "--tokens", 37, "--json").json()
        for rank, shard in enumerate(got["ranks"]):
            expected = want.shard(rank)
            assert {key: shard[key] for key in expected} == expected
        assert rows_of(got["collectives"]) == want.step([37] * want.size["dp"])

    @pytest.mark.parametrize("mesh, sequence_parallel, nodes", MESHES)
    @pytest.mark.parametrize("name", MODELS)
    def test_shards_and_bytes_follow_the_rules(self, sixfold, config, name, mesh, sequence_parallel, nodes):
        want = expected_layout(config(GOLDEN / name), mesh, sequence_parallel, nodes)
        for rows in (7, 300):
            got = sixfold("layout", GOLDEN / name, *flags_of(mesh, sequence_parallel, nodes), "--tokens", rows,
                          "--json").json()
            assert got["mesh"] == (mesh if mesh != "tp1" else got["mesh"]) and got["tokens"] == rows
            assert got["world"] == want.world == len(got["ranks"]) and got["sequence_parallel"] == want.sp
            for rank, shard in enumerate(got["ranks"]):
                expected = want.shard(rank)
                assert {key: shard[key] for key in expected} == expected
            assert rows_of(got["collectives"]) == want.step([rows] * want.size["dp"])
            assert got["total_bytes"] == sum(row["bytes"] for row in got["collectives"])

    def test_groups_are_the_ranks_that_differ_in_one_coordinate(self, sixfold, tiny):
        got = sixfold("layout", tiny, "--mesh", "pp2,tp4,dp2", "--nodes", 4, "--json").json()
        at = [{axis: shard[axis] for axis in ("tp", "dp", "pp")} for shard in got["ranks"]]
        assert [tuple(c.values()) for c in at[:3]] == [(0, 0, 0), (0, 0, 1), (1, 0, 0)]  # pp counts first
        for axis, groups in ((axis, got["groups"][axis]) for axis in ("tp", "dp", "pp")):
            assert sorted(itertools.chain(*(group["ranks"] for group in groups))) == list(range(16))
            for group in groups:
                others = [{k: v for k, v in at[rank].items() if k != axis} for rank in group["ranks"]]
                assert others == [others[0]] * len(others)
                assert [at[rank][axis] for rank in group["ranks"]] == list(range(len(group["ranks"])))
                nodes = {rank // 4 for rank in group["ranks"]}
                crosses = len(nodes) > 1
                stays = any(a // 4 == b // 4 for a, b in itertools.combinations(group["ranks"], 2))
                assert set(group["links"]) == set(["shm"] * stays + ["ethernet"] * crosses)

    def test_a_cluster_file_says_who_is_where_and_over_what(self, sixfold, tiny, config, tmp_path):
        file = tmp_path / "cluster.toml"
        file.write_text('ranks-per-node = [3, 1]\ninside = "nvlink"\n[between]\nlink = "infiniband"\nlatency-us = 9\n')
        got = sixfold("layout", tiny, "--mesh", "tp2,pp2", "--cluster", file, "--tokens", 9, "--json").json()
        assert [shard["node"] for shard in got["ranks"]] == [0, 0, 0, 1]
        assert got["cluster"]["between"]["latency_us"] == 9
        want = layout_math.Layout(layout_math.Model(config(tiny)), parsed("tp2,pp2"), [3, 1])
        names = {"shm": "nvlink", "ethernet": "infiniband"}
        assert rows_of(got["collectives"]) == {(axis, op, names[link]): row
                                               for (axis, op, link), row in want.step([9]).items()}

    def test_smollm2_deals_its_nine_heads_whole(self, sixfold, smollm2):
        got = sixfold("layout", smollm2, "--mesh", "tp4", "--json").json()
        assert [shard["heads"] for shard in got["ranks"]] == [[0, 3], [3, 5], [5, 7], [7, 9]]
        assert [shard["kv_heads"] for shard in got["ranks"]] == [[0, 1], [1, 2], [1, 3], [2, 3]]
        assert [shard["vocab"][0] for shard in got["ranks"]] == [0, 12288, 24576, 36864]


class TestHowALayoutIsWritten:
    def layout(self, sixfold, tiny, *flags, **kwargs):
        got = sixfold("layout", tiny, *flags, "--json", **kwargs).json()
        return {key: got[key] for key in ("ranks", "groups", "world", "sequence_parallel", "cluster")}

    @pytest.mark.parametrize("flags, same", [
        ("--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2", "--mesh tp2,dp2,pp2"),
        ("-tp 2 -pp 2 -dp 2", "--mesh tp2,dp2,pp2"),
        ("--tp-size 2 --pp-size 2 --dp-size 2", "--mesh tp2,dp2,pp2"),
        ("--tp 2 --dp 3", "--mesh tp2,dp3"),
        ("-tp=4", "--mesh tp4"),
        ("--tensor-parallel-size=4 --nnodes 2", "--mesh tp4 --nodes 2"),
        ("-tp 2 --enable-sequence-parallel", "--mesh tp2 --sequence-parallel"),
        ("-pp 2 -dp 2", "--mesh dp2,pp2"),
        ("--mesh dp2,tp1,pp2", "--mesh dp2,pp2"),
    ])
    def test_other_spellings_mean_the_same(self, sixfold, tiny, flags, same):
        assert self.layout(sixfold, tiny, *flags.split()) == self.layout(sixfold, tiny, *same.split())

    def test_the_environment_and_a_file_can_say_it(self, sixfold, tiny, tmp_path):
        want = self.layout(sixfold, tiny, "--mesh", "pp2,tp2")
        assert self.layout(sixfold, tiny, env={"SIXFOLD_MESH": "pp2,tp2"}) == want
        file = tmp_path / "settings.toml"
        file.write_text('mesh = "pp2,tp2"\n')
        assert self.layout(sixfold, tiny, "--config", file) == want
        assert self.layout(sixfold, tiny, "--mesh", "pp2,tp2", env={"SIXFOLD_MESH": "tp4"}) == want

    @pytest.mark.parametrize("flags, env, named", [
        ("--mesh tp2 -tp 2", {}, ["--mesh", "-tp"]),
        ("--mesh tp2 --pipeline-parallel-size 1", {}, ["--mesh", "--pipeline-parallel-size"]),
        ("-dp 2", {"SIXFOLD_MESH": "tp2"}, ["SIXFOLD_MESH", "-dp"]),
        ("--mesh tp2 --nodes 2 --cluster FILE", {}, ["--nodes", "--cluster"]),
        ("--mesh tp2,dp4,tp2", {}, ["--mesh", "tp twice"]),
        ("--mesh xy2", {}, ["--mesh", "xy"]),
        ("--mesh tp", {}, ["--mesh", "tp"]),
        ("--mesh tp0", {}, ["--mesh", "0"]),
        ("--mesh tp-2", {}, ["--mesh", "tp-2"]),
        ("--mesh tp99999999999999999999", {}, ["--mesh"]),
        ("-tp 0", {}, ["-tp", "0"]),
        ("-tp two", {}, ["-tp", "two"]),
    ])
    def test_contradictions_and_nonsense_are_refused_by_name(self, sixfold, tiny, tmp_path, flags, env, named):
        file = tmp_path / "cluster.toml"
        file.write_text("ranks-per-node = 2\n")
        answer = sixfold("layout", tiny, *flags.replace("FILE", str(file)).split(), env=env)
        assert answer.code == 2 and answer.out == "", answer.err
        for word in named:
            assert word in answer.err
        assert len(answer.err.splitlines()) == 1


class TestRefusals:
    @pytest.mark.parametrize("name, flags, reasons", [
        ("llama_gqa", "--mesh tp8", ["tp is 8", "4 query heads"]),
        ("llama_gqa", "-tp 5 -dp 3", ["tp is 5", "4 query heads"]),
        ("llama_gqa", "--mesh pp5", ["pp is 5", "2 layers"]),
        ("llama_gqa", "--mesh tp2,pp5", ["pp is 5", "2 layers"]),
        ("llama_gqa", "--mesh pp3,dp4,tp8", ["tp is 8"]),
        ("llama_gqa", "--mesh tp4096", ["tp is 4096", "4 query heads"]),
        ("qwen3_moe_mixed", "--mesh pp7", ["pp is 7", "6 layers"]),
        ("olmoe", "--mesh tp6,dp2 --nodes 2", ["tp is 6", "4 query heads"]),
    ])
    def test_say_why_and_what_runs_instead(self, sixfold, tmp_path, name, flags, reasons):
        model, output = GOLDEN / name, tmp_path / "logits.safetensors"
        for command in (["logits", model, "--tokens", "1,2,3", "--output", output], ["layout", model],
                        ["generate", model, "--prompt-tokens", "1,2"], ["serve", model, "--port", 0]):
            answer = sixfold(*command, *flags.split())
            assert answer.code == 2 and answer.out == "", answer.err
            for reason in reasons:
                assert reason in answer.err
        nearest = re.findall(r"--mesh ((?:[a-z]+\d+,?)+)\b", answer.err.split("nearest", 1)[1])
        assert nearest
        same_nodes = re.findall(r"--nodes \d+", flags)
        for mesh in nearest:
            if world_of(mesh) <= 32:
                again = sixfold("logits", model, "--tokens", "1,2,3", "--output", output, "--mesh", mesh,
                                *" ".join(same_nodes).split())
                assert again.code == 0, again.err

    def test_the_nearest_layout_has_as_many_ranks_where_one_can(self, sixfold, tiny):
        answer = sixfold("layout", tiny, "--mesh", "tp8,pp2")
        assert answer.code == 2 and "--mesh tp4,pp2,dp2" in answer.err

    @pytest.mark.parametrize("flags, reasons", [
        ("--mesh tp2,dp2 --nodes 3", ["4 ranks", "3 nodes"]), ("-tp 4 --nodes 8", ["4 ranks", "8 nodes"]),
        ("--nodes 2", ["1 rank", "2 nodes"])])
    def test_ranks_that_do_not_come_out_even_on_nodes(self, sixfold, tiny, flags, reasons):
        answer = sixfold("layout", tiny, *flags.split())
        assert answer.code == 2
        for reason in reasons:
            assert reason in answer.err

    def test_a_cluster_of_another_size(self, sixfold, tiny, tmp_path):
        file = tmp_path / "cluster.toml"
        file.write_text("nodes = 2\nranks-per-node = 4\n")
        answer = sixfold("layout", tiny, "--mesh", "tp2,dp2", "--cluster", file)
        assert answer.code == 2 and "4 ranks" in answer.err and "8 on 2 nodes" in answer.err

    def test_a_cluster_file_that_is_missing_or_wrong(self, sixfold, tiny, tmp_path):
        answer = sixfold("layout", tiny, "--mesh", "tp2", "--cluster", tmp_path / "none.toml")
        assert answer.code == 3 and "none.toml" in answer.err
        file = tmp_path / "cluster.toml"
        file.write_text("ranks-per-node = 2\n\nbandwidth = 3\n")
        answer = sixfold("layout", tiny, "--mesh", "tp2", "--cluster", file)
        assert answer.code == 3 and f"{file}:3" in answer.err and "bandwidth" in answer.err


def many_layouts():
    """Flags of 40 layouts that every model of 4 heads and 2 layers can run, besides one rank."""
    out = []
    for tp, dp, pp in itertools.product((1, 2, 3, 4), (1, 2, 4), (1, 2)):
        if tp * dp * pp == 1:
            continue
        nodes = 2 if tp * dp * pp % 2 == 0 and dp > 1 else 1
        out.append(flags_of(f"tp{tp},dp{dp},pp{pp}", False, nodes))
        if tp > 1:
            out.append(flags_of(f"pp{pp},dp{dp},tp{tp}" if pp > 1 else f"tp{tp},dp{dp}", True, nodes))
    return out


class TestSameBits:
    def logits(self, sixfold, model, tokens, output, *flags):
        answer = sixfold("logits", model, "--tokens", tokens, "--output", output, *flags)
        assert answer.code == 0, answer.err
        return output.read_bytes()

    @pytest.mark.parametrize("name", ["llama_gqa", "qwen3", "olmoe", "mixtral"])
    def test_logits_files_of_many_layouts(self, sixfold, config, prompt, tmp_path, name):
        model, tokens = GOLDEN / name, prompt(GOLDEN / name)
        count = len(tokens.split(","))
        one_rank = self.logits(sixfold, model, tokens, tmp_path / "one")
        layouts = many_layouts()
        assert len(layouts) >= 40
        for flags in layouts:
            stats = tmp_path / "stats.json"
            assert self.logits(sixfold, model, tokens, tmp_path / "many", *flags, "--stats", stats) == one_rank, flags
            said = json.loads(stats.read_text())
            mesh, nodes = flags[1], int(flags[-1]) if "--nodes" in flags else 1
            want = expected_layout(config(model), mesh, "--sequence-parallel" in flags, nodes)
            assert said["world"] == want.world == len(said["ranks"])
            step = want.step([count] + [0] * (want.size["dp"] - 1), wanted="all")
            counted = rows_of(said["collectives"], "count", "counted_bytes")
            assert counted == rows_of(said["collectives"], "predicted_count", "predicted_bytes"), flags
            if want.travels:  # bytes to and from experts are an expectation there
                counted, step = ({key: row if key[0] not in ("ep", "etp") else row[0] for key, row in rows.items()}
                                 for rows in (counted, step))
            assert counted == step, flags

    # Blocks of quantised weights are not cut: a tiny model of such weights has few leaves.
    @pytest.mark.parametrize("name, meshes", [
        ("llama_bf16", ["tp3,dp2", "pp2,tp4"]), ("llama_odd", ["tp4,dp2", "pp2,tp3"]), ("mistral_window", ["tp4", "tp2,pp2"]),
        ("qwen3_fp8", ["dp2,pp2"]), ("qwen3_moe_mixed", ["tp3,pp5", "pp6,tp4"]), ("llama_gguf_q32/model.gguf", ["tp2", "pp2,tp2"]),
        ("llama_gguf_k/model.gguf", ["dp2"]), ("mixtral_gguf_q32/model.gguf", ["tp2,dp2", "pp2,tp2"])])
    @pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
    def test_logits_files_of_other_files_and_dtypes(self, sixfold, prompt, tmp_path, name, meshes, dtype):
        model = GOLDEN / name
        tokens = prompt(model if model.is_dir() else model.parent)
        one_rank = self.logits(sixfold, model, tokens, tmp_path / "one", "--dtype", dtype)
        for mesh in meshes:
            for more in ([], ["--sequence-parallel"]):
                many = self.logits(sixfold, model, tokens, tmp_path / "many", "--dtype", dtype, "--mesh", mesh, *more)
                assert many == one_rank, mesh

    def test_chunks_threads_and_instructions_do_not_matter_either(self, sixfold, tiny, prompt, tmp_path):
        one_rank = self.logits(sixfold, tiny, prompt(tiny), tmp_path / "one")
        for flags in (["-b", 5], ["--threads", 2], ["--isa", "scalar"], ["-b", 3, "--threads", 2, "--sequence-parallel"]):
            assert self.logits(sixfold, tiny, prompt(tiny), tmp_path / "many", "--mesh", "tp3,pp2", *flags) == one_rank, flags


class TestVerify:
    def test_reports_each_line_of_a_file(self, sixfold, tiny, tmp_path):
        file = tmp_path / "layouts"
        file.write_text("# as flags\n--mesh tp2,pp2 --sequence-parallel\n\n-tp 4 --nodes 2   # over two\n"
                        "--mesh dp3,tp2 --nodes 3\n")
        got = sixfold("verify", tiny, "--layouts", file, "--json").json()
        assert got["model"] == "llama_gqa" and got["passed"] == 3 and got["failed"] == got["not_run"] == 0
        assert got["decode_steps"] == 32 and got["rows"] > 100
        rows = got["layouts"]
        assert [row["layout"] for row in rows] == ["--mesh tp2,pp2 --sequence-parallel", "-tp 4 --nodes 2",
                                                   "--mesh dp3,tp2 --nodes 3"]
        assert [(row["ranks"], row["nodes"]) for row in rows] == [(4, 1), (4, 2), (6, 3)]
        for row in rows:
            assert row["equal"] and row["bytes_equal"] and row["steps"] == 33
            assert row["counted_bytes"] == row["predicted_bytes"] > 0
        text = sixfold("verify", tiny, "--layouts", file)
        assert text.code == 0 and "3 layouts" in text.out and "-tp 4 --nodes 2" in text.out

    @pytest.mark.parametrize("name", ["llama_gqa", "qwen3", "qwen2_window"])
    def test_a_covering_set_lets_every_two_values_meet(self, sixfold, name):
        got = sixfold("verify", GOLDEN / name, "--json").json()
        rows = got["layouts"]
        assert got["passed"] == len(rows) >= 13 and all(row["equal"] and row["bytes_equal"] for row in rows)
        met = set()
        for row in rows:
            sizes = dict(parsed(row["layout"].split()[1]))
            things = {("tp", sizes["tp"]), ("dp", sizes["dp"]), ("pp", sizes["pp"]), ("nodes", row["nodes"]),
                      ("sp", "--sequence-parallel" in row["layout"])}
            met |= set(itertools.combinations(sorted(things, key=str), 2))
            assert row["ranks"] == math.prod(sizes.values()) <= 32
        stages = (1, 2, 3, 4) if name == "qwen2_window" else (1, 2)
        for a, b in itertools.product((1, 2, 3, 4), stages):
            assert (("pp", b), ("tp", a)) in met or a * b == 1, (a, b)
        for a, b in itertools.product((1, 2, 4), stages):
            assert (("dp", a), ("pp", b)) in met, (a, b)
        for a, b in itertools.product((2, 3, 4), (False, True)):
            assert (("sp", b), ("tp", a)) in met, (a, b)

    def test_fast_numerics_stay_within_bounds(self, sixfold, tiny):
        got = sixfold("verify", tiny, "--numerics", "fast", "--json").json()
        assert got["numerics"] == "fast" and got["passed"] >= 13 and got["failed"] == 0

    @pytest.mark.parametrize("text, code, words", [
        ("--mesh tp2\n--mesh tp8\n", 2, [":2", "tp is 8", "nearest"]), ("--mesh tp2\n--dtype f32\n-tp x\n", 2, [":3", "-tp"]),
        ("", 2, ["no layout"]), (None, 3, ["layouts"])])
    def test_bad_files_are_refused_with_their_line(self, sixfold, tiny, tmp_path, text, code, words):
        file = tmp_path / "layouts"
        if text is not None:
            file.write_text(text)
        answer = sixfold("verify", tiny, "--layouts", file)
        assert answer.code == code, answer.err
        for word in words:
            assert word in answer.err

    @pytest.mark.parametrize("flags", [[], ["--layouts", "FILE"]])
    @pytest.mark.parametrize("step, row, column", [(0, 0, 0), (0, 58, 95), (0, 122, 5), (1, 0, 7), (1, 4, 95), (5, 2, 40), (8, 4, 0), (8, 4, 95)])
    def test_one_wrong_bit_in_any_step_is_noticed(self, sixfold, tiny, tmp_path, step, row, column, flags):
        """The checker seen to fail: first and last step, row and column."""
        (tmp_path / "layouts").write_text("--mesh dp2,pp2\n")
        flags = [tmp_path / "layouts" if flag == "FILE" else flag for flag in flags] or ["--mesh", "tp2"]
        answer = sixfold("verify", tiny, *flags, "--decode-steps", 8, "--json", "--inject-fault", f"logit:{step}:{row}:{column}")
        assert answer.code == 1 and f"step {step}, after the last layer" in answer.err, answer.err
        got = json.loads(answer.out)
        assert got["failed"] == 1 and got["passed"] == 0
        found = got["layouts"][0]["first_difference"]
        prompts = got["prompts"]
        ends = list(itertools.accumulate(prompts)) if step == 0 else list(range(1, 6))
        sequence = next(i for i, end in enumerate(ends) if row < end)
        position = row - (ends[sequence] - prompts[sequence]) if step == 0 else prompts[sequence] + step - 1
        assert (found["step"], found["sequence"], found["position"]) == (step, sequence, position)
        assert found["expected"] != found["got"] and abs(found["expected"] - found["got"]) < 1e-5

    def test_one_wrong_byte_is_noticed(self, sixfold, tiny):
        answer = sixfold("verify", tiny, "--mesh", "tp2", "--decode-steps", 1, "--json", "--inject-fault", "bytes")
        row = json.loads(answer.out)["layouts"][0]
        assert answer.code == 1 and row["equal"] and not row["bytes_equal"]
        assert row["counted_bytes"] == row["predicted_bytes"] + 1

    @pytest.mark.parametrize("fault", ["logit", "logit:1:2", "logit:0:0:107", "logit:2:0:0", "logit:0:123:0", "logit:0:-1:0", "byte", "logit:0:0:0x"])
    def test_a_fault_that_cannot_be_is_a_usage_error(self, sixfold, tiny, fault):
        answer = sixfold("verify", tiny, "--mesh", "tp2", "--decode-steps", 1, "--inject-fault", fault)
        assert answer.code == 2 and "--inject-fault" in answer.err

    def test_emulated_links_take_their_time_and_change_no_bit(self, sixfold, tiny, tmp_path):
        cluster = tmp_path / "cluster.toml"
        cluster.write_text('ranks-per-node = [1, 1]\n[between]\nlink = "ethernet"\nlatency-us = 150000\n')
        file = tmp_path / "layouts"
        file.write_text(f"-pp 2 --cluster {cluster}\n")
        # The time-out is shorter than a step, whose messages go there one after the other.
        got = sixfold("verify", tiny, "--layouts", file, "--decode-steps", 4, "--json", "--emulate-links", "--comm-timeout", 0.2).json()
        assert got["passed"] == 1 and got["layouts"][0]["equal"] and got["layouts"][0]["bytes_equal"]
        assert got["layouts"][0]["seconds"] > 5 * 2 * 0.15  # a step: rows to the second stage, logits back

    def test_smollm2_in_both_arithmetics(self, sixfold, smollm2, tmp_path):
        file = tmp_path / "layouts"
        file.write_text("--mesh tp2,pp2 --sequence-parallel\n--mesh tp4,dp2 --nodes 2\n")
        for flags in ([], ["--dtype", "int8"]):
            got = sixfold("verify", smollm2, "--layouts", file, "--decode-steps", 4, "--json", *flags).json()
            assert got["passed"] == 2


def check_stats(path, world):
    said = json.loads(path.read_text())
    assert said["world"] == world and [row["rank"] for row in said["ranks"]] == list(range(world))
    assert said["steps"] > 0 and said["collectives"]
    for row in said["collectives"]:
        assert row["counted_bytes"] == row["predicted_bytes"] and row["count"] == row["predicted_count"], row
    for row in said["ranks"]:
        assert row["step_seconds"] > 0 and row["comm_seconds"] >= 0 and row["idle_seconds"] >= 0


class TestEveryCommandTakesALayout:
    LAYOUTS = [("-tp 2", 2), ("--mesh tp2,dp2,pp2 --sequence-parallel", 8), ("-dp 3", 3)]

    @pytest.mark.parametrize("flags, world", LAYOUTS)
    def test_generate(self, sixfold, talkative, tmp_path, flags, world):
        ask = ["generate", talkative, "--prompt", "Once", "--max-tokens", 40, "--seed", 7, "-n", 3, "--logprobs", 2,
               "--ignore-eos", "--json"]
        stats = tmp_path / "stats.json"
        assert sixfold(*ask, *flags.split(), "--stats", stats).json() == sixfold(*ask).json()
        check_stats(stats, world)

    @pytest.mark.parametrize("flags, world", LAYOUTS)
    def test_perplexity(self, sixfold, talkative, tmp_path, flags, world):
        text, stats = tmp_path / "text", tmp_path / "stats.json"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 8)
        ask = ["perplexity", talkative, text, "--context", 64, "--json"]
        assert sixfold(*ask, *flags.split(), "--stats", stats).json() == sixfold(*ask).json()
        check_stats(stats, world)

    @pytest.mark.parametrize("flags, world", LAYOUTS)
    def test_run(self, sixfold, talkative, tmp_path, flags, world):
        stats = tmp_path / "stats.json"
        ask = ["run", talkative, "Hello", "--max-tokens", 30, "--temperature", 0]
        one_rank, many = sixfold(*ask), sixfold(*ask, *flags.split(), "--stats", stats)
        assert one_rank.code == many.code == 0 and len(one_rank.out) > 20 and many.out == one_rank.out
        check_stats(stats, world)

    @pytest.mark.parametrize("flags, world", [("-tp 2 -dp 2", 4), ("--mesh pp2,dp2,tp3 --sequence-parallel", 12)])
    def test_serve_answers_many_at_once_as_one_rank_does(self, sixfold, talkative, tmp_path, flags, world):
        stats = tmp_path / "stats.json"
        asks = [{"prompt": [1 + n, 2, 3] * (n + 1), "max_tokens": 20 + 9 * n, "seed": n, "temperature": n % 3 * 0.6,
                 "logprobs": 3, "ignore_eos": True} for n in range(12)]

        def answers(url, at_once):
            with ThreadPoolExecutor(at_once) as pool:
                return [answer["choices"] for answer in pool.map(lambda ask: serving.complete(url, **ask), asks)]

        with serving.Server(sixfold, talkative) as server:
            one_by_one = answers(server.url, 1)
        with serving.Server(sixfold, talkative, *flags.split(), "--stats", stats) as server:
            together = answers(server.url, 12)
            assert serving.get(server.url + "/health")[0] == 200
        assert together == one_by_one
        check_stats(stats, world)

    def test_one_rank_writes_stats_too(self, sixfold, tiny, tmp_path):
        stats = tmp_path / "stats.json"
        answer = sixfold("logits", tiny, "--tokens", "1,2", "--output", tmp_path / "logits", "--stats", stats)
        assert answer.code == 0
        said = json.loads(stats.read_text())
        assert said["world"] == 1 and len(said["ranks"]) == 1 and said["collectives"] == []

    def test_stats_that_cannot_be_written(self, sixfold, tiny, tmp_path):
        path = tmp_path / "no" / "stats.json"
        answer = sixfold("logits", tiny, "--tokens", "1,2", "--output", tmp_path / "logits", "--stats", path)
        assert answer.code != 0 and str(path) in answer.err
