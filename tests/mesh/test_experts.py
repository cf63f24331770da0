"""Experts on many ranks: routes that are recorded and forced, traffic of any shape, what each rank holds, and what is counted."""
import itertools
import json
import re
import time

import pytest

import serving
import tiny_models
from program import GOLDEN, ROOT

MODEL = GOLDEN / "olmoe"  # 7 experts, 3 a token, 2 layers
EXPERTS, TOP_K, LAYERS = 7, 3, 2
LAYOUTS = ["--mesh tp2", "--mesh tp2 --ep 2", "--mesh dp4 --ep 4", "--mesh dp4 --ep 4 --nodes 2", "--mesh dp4 --ep 4 --nodes 2 --all2all-backend flat",
           "--mesh tp2,dp2 --ep 2 --etp 2 --sequence-parallel", "--mesh tp2,dp2,pp2 --ep 4 --nodes 4",
           "--mesh pp2,tp2,dp2 --ep 2 --nodes 2", "--mesh dp7 --ep 7", "--mesh tp2,dp2 --enable-expert-parallel --nodes 2"]


def logits(sixfold, tmp_path, tokens, *flags):
    output = tmp_path / "logits"
    answer = sixfold("logits", MODEL, "--tokens", tokens, "--output", output, *flags)
    assert answer.code == 0, answer.err
    return output.read_bytes()


def metrics(url):
    """name → value of the page's series; none may have a label for each expert."""
    status, page = serving.get(url + "/metrics")
    assert status == 200 and "expert=" not in page
    return {re.split(r"[{ ]", line)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if not line.startswith("#")}


TOY = ROOT / "models" / "toy"
FOLDED = ["--mesh tp2,dp8,pp4 --ep 8 --etp 2 --nodes 8", "--mesh tp2,dp8,pp4 --ep 8 --etp 2 --nodes 8 --all2all-backend flat",
          "--mesh tp2,dp8,pp2 --ep 16 --nodes 4", "--mesh tp2,dp8,pp2 --ep 16 --nodes 4 --sequence-parallel",
          "--mesh tp2,dp8,pp2 --ep 16 --nodes 4 --all2all-backend flat", "--mesh dp16 --ep 16 --nodes 2", "--mesh dp16,pp2 --ep 16 --nodes 4",
          "--mesh tp4,dp4 --ep 16 --sequence-parallel", "--mesh pp2,dp8,tp2 --ep 16 --nodes 2", "--mesh tp2,dp8 --ep 8 --nodes 4"]


@pytest.fixture(scope="module", params=["toy", "olmoe", "deepseek_v3", "gpt_oss", "gpt_oss_mxfp4"])
def model_of_a_family(request, tmp_path_factory):
    """With enough experts for 16 places and layers for 4 stages."""
    if request.param == "toy":
        return TOY
    return tiny_models.grow(request.param, tmp_path_factory.mktemp("grown") / request.param, experts=24, layers=4)


class TestEquality:
    """All logits of a ragged prefill and of decode steps equal to one rank's, and bytes as predicted from the routes."""

    def verify(self, sixfold, model, *arguments):
        said = sixfold("verify", model, *arguments, "--decode-steps", 32, "--json").json()
        assert said["failed"] == 0 and said["not_run"] == 0
        return said

    def test_folded_meshes(self, sixfold, model_of_a_family, tmp_path):
        (tmp_path / "layouts").write_text("\n".join(FOLDED))
        assert self.verify(sixfold, model_of_a_family, "--layouts", tmp_path / "layouts")["passed"] == len(FOLDED)

    def test_every_two_values_of_two_axes(self, sixfold, model_of_a_family):
        said = self.verify(sixfold, model_of_a_family, "--layouts", "covering", "--max-ranks", 16)
        assert said["passed"] >= 25
        flags = " ".join(row["layout"] + " " for row in said["layouts"])
        for value in ["--ep 1 ", "--ep 2 ", "--ep 4 ", "--ep 8 ", "--ep 16 ", "--etp 2 ", "flat", "hierarchical", "--nodes 2", "--nodes 4",
                      "--sequence-parallel", "pp4", "dp16", "tp4"]:
            assert value in flags, value


class TestReplay:
    def test_routes_of_one_layout_forced_on_another_give_equal_bits(self, sixfold, prompt, tmp_path):
        tokens = prompt(MODEL)
        want = logits(sixfold, tmp_path, tokens, "--record-routes", tmp_path / "one")
        for flags in LAYOUTS:
            split = flags.split()
            for chunk in ([], ["--max-num-batched-tokens", 5]):
                assert logits(sixfold, tmp_path, tokens, *split, *chunk, "--record-routes", tmp_path / "many") == want
                assert (tmp_path / "many").read_text() == (tmp_path / "one").read_text(), flags
            assert logits(sixfold, tmp_path, tokens, *split, "--replay-routes", tmp_path / "one") == want
            assert logits(sixfold, tmp_path, tokens, "--replay-routes", tmp_path / "many") == want

    def test_what_is_forced_is_what_is_computed_and_counted(self, sixfold, tmp_path):
        """Other experts than the gate's: other logits, the same on every layout, and counters that say so."""
        tokens = "5,9,2,7,11"
        own = logits(sixfold, tmp_path, tokens, "--record-routes", tmp_path / "routes")
        routes = json.loads((tmp_path / "routes").read_text())
        for rows in routes["layers"].values():
            for row in rows:
                row[:] = [(expert + 1) % EXPERTS for expert in row]
        (tmp_path / "routes").write_text(json.dumps(routes))
        want = logits(sixfold, tmp_path, tokens, "--replay-routes", tmp_path / "routes", "--stats", tmp_path / "stats")
        assert want != own
        counts = [[sum(row.count(e) for row in rows) for e in range(EXPERTS)] for rows in routes["layers"].values()]
        for flags in [""] + LAYOUTS:
            got = logits(sixfold, tmp_path, tokens, *flags.split(), "--replay-routes", tmp_path / "routes", "--stats",
                         tmp_path / "stats")
            assert got == want, flags
            said = json.loads((tmp_path / "stats").read_text())["experts"]
            assert [layer["assignments"] for layer in said["layers"]] == counts, flags
            assert said["assignments"] == 5 * TOP_K * LAYERS

    @pytest.mark.parametrize("change, reason", [
        (lambda r: r["layers"].pop("2"), "layer 2 is missing"),
        (lambda r: r["layers"].update({"3": r["layers"]["1"]}), "3 layers"),
        (lambda r: r["layers"]["1"].pop(), "each of the 3 tokens"),
        (lambda r: r["layers"]["1"][1].pop(), "token 1: expected a list of 3 experts"),
        (lambda r: r["layers"]["1"][2].__setitem__(0, 7), "from 0 to 6"),
        (lambda r: r["layers"]["1"][2].__setitem__(0, -1), "from 0 to 6"),
        (lambda r: r["layers"]["1"][2].__setitem__(0, "x"), "from 0 to 6"),
        (lambda r: r["layers"]["1"][2].__setitem__(slice(None), [4, 2, 4]), "expert 4 comes twice"),
        (lambda r: r["tokens"].__setitem__(0, 99), "other tokens"),
        (lambda r: r.pop("tokens"), "--record-routes")])
    def test_files_that_do_not_fit_are_refused(self, sixfold, tmp_path, change, reason):
        logits(sixfold, tmp_path, "1,2,3", "--record-routes", tmp_path / "routes")
        routes = json.loads((tmp_path / "routes").read_text())
        change(routes)
        (tmp_path / "routes").write_text(json.dumps(routes))
        answer = sixfold("logits", MODEL, "--tokens", "1,2,3", "--output", tmp_path / "x", "--replay-routes", tmp_path / "routes")
        assert answer.code == 2 and reason in answer.err, answer.err

    def test_models_without_experts_have_no_routes(self, sixfold, tiny, tmp_path):
        for flag in ("--record-routes", "--replay-routes"):
            answer = sixfold("logits", tiny, "--tokens", "1", "--output", tmp_path / "x", flag, tmp_path / "routes")
            assert answer.code == 2 and "no experts" in answer.err


class TestDegenerateTraffic:
    """Shapes of traffic that hang or corrupt others' dispatch; every layout against one rank."""

    @pytest.mark.parametrize("choose", [
        lambda token: [6, 5, 4],                                     # all tokens to the same experts
        lambda token: [0, 1, 2] if token % 2 else [4, 5, 6],         # two camps
        lambda token: [token % 7, (token + 1) % 7, (token + 2) % 7]])
    @pytest.mark.parametrize("count", [1, 2, 9])
    def test_lopsided_routes(self, sixfold, tmp_path, choose, count):
        tokens = ",".join(str(t + 3) for t in range(count))
        logits(sixfold, tmp_path, tokens, "--record-routes", tmp_path / "routes")
        routes = json.loads((tmp_path / "routes").read_text())
        routes["layers"] = {layer: [choose(t) for t in range(count)] for layer in routes["layers"]}
        (tmp_path / "routes").write_text(json.dumps(routes))
        replay = ["--replay-routes", tmp_path / "routes"]
        want = logits(sixfold, tmp_path, tokens, *replay)
        for flags in LAYOUTS:
            stats = tmp_path / "stats"
            assert logits(sixfold, tmp_path, tokens, *flags.split(), *replay, "--stats", stats) == want, flags
            for row in json.loads(stats.read_text())["collectives"]:
                assert (row["count"], row["counted_bytes"]) == (row["predicted_count"], row["predicted_bytes"]), (flags, row)

    def test_all_experts_for_every_token(self, sixfold, tmp_path):
        """top-k = all experts."""
        folder = tmp_path / "all"
        folder.mkdir()
        for file in ("model.safetensors",):
            (folder / file).write_bytes((MODEL / file).read_bytes())
        config = json.loads((MODEL / "config.json").read_text()) | {"num_experts_per_tok": EXPERTS}
        (folder / "config.json").write_text(json.dumps(config))
        (tmp_path / "layouts").write_text("\n".join(LAYOUTS))
        said = sixfold("verify", folder, "--layouts", tmp_path / "layouts", "--decode-steps", 4, "--json").json()
        assert said["passed"] == len(LAYOUTS) and said["failed"] == 0

    def test_a_replica_without_tokens_in_each_position(self, sixfold, tmp_path):
        """verify leaves the last of four replicas idle; orders of counting put it elsewhere among the ranks."""
        lines = [f"--mesh {mesh} --ep {ep} --nodes {nodes}" for mesh, ep, nodes in
                 itertools.product(["dp4,tp2", "tp2,dp4", "dp4,pp2,tp2", "pp2,dp4,tp2"], [2, 4], [1, 2])]
        (tmp_path / "layouts").write_text("\n".join(lines))
        said = sixfold("verify", MODEL, "--layouts", tmp_path / "layouts", "--decode-steps", 8, "--json").json()
        assert said["passed"] == len(lines) and said["failed"] == 0


class TestUnevenNodes:
    @pytest.mark.parametrize("ranks_per_node", [[3, 1], [1, 3], [5, 1, 2], [2, 6]])
    def test_relays_stand_in_where_a_node_has_no_rank_at_the_place(self, sixfold, tmp_path, ranks_per_node):
        (tmp_path / "cluster.toml").write_text(f"ranks-per-node = {ranks_per_node}\n")
        dp = sum(ranks_per_node)
        lines = [f"--mesh {mesh} {flags} --cluster {tmp_path}/cluster.toml" for mesh in (f"dp{dp}", f"tp2,dp{dp // 2}")
                 for flags in ("--ep 4", "--ep 2 --etp 2", "--ep 2 --all2all-backend flat")]
        (tmp_path / "layouts").write_text("\n".join(lines))
        said = sixfold("verify", MODEL, "--layouts", tmp_path / "layouts", "--decode-steps", 8, "--json").json()
        assert said["passed"] == len(lines) and said["failed"] == 0


class TestFastMode:
    """Relays sum there; all layouts go where the one rank went, since a rounding may change a route."""

    @pytest.mark.parametrize("name", ["olmoe", "qwen3_moe_bf16"])
    def test_logits_stay_within_bounds(self, sixfold, name):
        said = sixfold("verify", GOLDEN / name, "--numerics", "fast", "--json").json()
        assert said["numerics"] == "fast" and said["passed"] >= 20 and said["failed"] == 0

    def test_relays_send_less_back(self, sixfold, prompt, tmp_path):
        sent = {}
        for mode in ("fast", "reproducible"):
            logits(sixfold, tmp_path, prompt(MODEL), "--mesh", "dp4", "--ep", 4, "--nodes", 2, "--numerics", mode, "--stats", tmp_path / "stats")
            sent[mode] = sum(row["counted_bytes"] for row in json.loads((tmp_path / "stats").read_text())["collectives"]
                             if (row["op"], row["link"]) == ("combine", "ethernet"))
        assert 0 < sent["fast"] < sent["reproducible"]


class TestPlacement:
    def test_a_file_moves_experts_and_no_bit(self, sixfold, prompt, tmp_path):
        placement = {"1": [0, 3, 1, 0, 2, 0, 3], "2": [3, 3, 3, 3, 3, 2, 2]}
        (tmp_path / "placement").write_text(json.dumps(placement))
        flags = ["--mesh", "dp4", "--ep", 4, "--nodes", 2, "--expert-placement", tmp_path / "placement"]
        want = logits(sixfold, tmp_path, prompt(MODEL))
        assert logits(sixfold, tmp_path, prompt(MODEL), *flags, "--stats", tmp_path / "stats") == want
        said = sixfold("layout", MODEL, *flags, "--json").json()
        for rank in said["ranks"]:
            assert rank["experts_by_layer"] == {str(int(layer) - 1): [e for e in range(EXPERTS) if places[e] == rank["ep"]]
                                                for layer, places in placement.items()}
        stats = json.loads((tmp_path / "stats").read_text())
        for layer in stats["experts"]["layers"]:
            of_places = [0] * 4
            for expert, count in enumerate(layer["assignments"]):
                of_places[placement[str(layer["layer"] + 1)][expert]] += count
            assert layer["place_imbalance"] == pytest.approx(max(of_places) * 4 / sum(of_places))
            assert layer["imbalance"] == pytest.approx(max(layer["assignments"]) * EXPERTS / sum(of_places))

    @pytest.mark.parametrize("text, reason", [
        ("[]", "JSON object"), ("{", "JSON object"), ('{"0": [0]}', "count from 1"), ('{"x": [0]}', "count from 1"),
        ('{"1": 3}', "list of places"), ('{"1": [0, 1]}', "2 experts and the model has 7"), ('{"1": [-1]}', "number from 0"),
        ('{"1": [0,0,0,0,0,0,2]}', "ep is 2"), ('{"1": [0], "01": [1]}', "layer 1 comes twice"), ("[" * 100000, "JSON object"), ('{"9": [0,0,0,0,0,0,1]}', "no experts there")])
    def test_files_that_say_nothing_sensible(self, sixfold, tmp_path, text, reason):
        (tmp_path / "placement").write_text(text)
        answer = sixfold("layout", MODEL, "--mesh", "dp2", "--ep", 2, "--expert-placement", tmp_path / "placement")
        assert answer.code == 2 and reason in answer.err, answer.err


class TestWhatAUserSees:
    def test_verify_takes_the_layout_of_its_own_flags(self, sixfold):
        said = sixfold("verify", MODEL, "-tp", 2, "-dp", 2, "--enable-expert-parallel", "--nodes", 2, "--decode-steps", 2, "--json").json()
        assert [row["layout"] for row in said["layouts"]] == ["--mesh tp2,dp2 --nodes 2 --ep 4"] and said["passed"] == 1

    @pytest.mark.parametrize("flags, reason", [
        ("--mesh dp4 --ep 3", "ep may be 1, 2 or 4"), ("--mesh dp8 --ep 8", "7 experts"), ("--mesh dp2 --ep 4", "from 1 to 2"),
        ("--mesh dp4 --etp 3", "etp may be"), ("--mesh dp4 --ep 4 --etp 2", "ep may be"), ("--mesh dp2 --ep 0", "--ep"),
        ("--mesh dp2 --all2all-backend pplx", "--all2all-backend")])
    def test_refusals_name_what_would_do(self, sixfold, flags, reason):
        answer = sixfold("layout", MODEL, *flags.split())
        assert answer.code == 2 and reason in answer.err and len(answer.err.splitlines()) == 1, answer.err

    def test_dense_models_have_no_experts_to_deal(self, sixfold, tiny):
        answer = sixfold("layout", tiny, "--mesh", "dp2", "--ep", 2)
        assert answer.code == 2 and "no experts" in answer.err

    def test_flags_have_the_spellings_of_others(self, sixfold):
        same = [sixfold("layout", MODEL, "--mesh", "tp2,dp2", *flags.split(), "--json").json()["expert_mesh"] for flags in (
            "--ep 4", "--ep-size 4", "--expert-parallel-size 4", "--enable-expert-parallel", "--moe-a2a-backend flat -ep 4")]
        assert same == ["ep4,etp1,edp1"] * len(same)

    def test_metrics_of_a_server(self, sixfold, tmp_path):
        folder = tiny_models.add_letters(tiny_models.copy("olmoe", tmp_path / "model"))
        with serving.Server(sixfold, folder, "--mesh", "dp2", "--ep", 2, "--stats", tmp_path / "stats") as server:
            serving.complete(server.url, prompt="abc", max_tokens=4, ignore_eos=True)
            wanted = 6 * TOP_K * LAYERS  # the last token is sampled and not computed
            values, deadline = {}, time.monotonic() + 20
            while values.get("sixfold_expert_assignments_total") != wanted and time.monotonic() < deadline:
                values = metrics(server.url)
        assert values["sixfold_expert_assignments_total"] == wanted
        assert values["sixfold_expert_dispatch_bytes_total"] > 0 and values["sixfold_expert_combine_bytes_total"] > 0
        assert values["sixfold_expert_load_imbalance"] >= 1
        assert json.loads((tmp_path / "stats").read_text())["experts"]["assignments"] == wanted
