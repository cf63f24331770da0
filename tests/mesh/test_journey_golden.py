"""The journey of one token over 32 ranks on 4 nodes: what the third seed document tells, row by row, and what must not pass for it."""
import collections
import json

import pytest

from program import ROOT

TOY = ROOT / "models" / "toy"
MESH = "tp2,cp2,dp4,pp2"
TOKENS, TOKEN, REPLICA = 512, 300, 2  # the third quarter: cp 1, tp 1
EXPERTS = {1: [27, 5], 2: [22, 8], 3: [30, 16], 4: [2, 12], 5: [14, 24], 6: [0, 18], 7: [8, 26], 8: [10, 30]}
# What carries the token to its experts: → inside a node, ⇒ between nodes, * it stays on its own rank. Back the other way round.
WAY = {1: "11→13 11⇒3 3→2", 2: "11* 11⇒3 3→4", 3: "11→15 11→8", 4: "11⇒3 3→1 3→6", 5: "27→28 27⇒19 19→23", 6: "27→25 27⇒19 19→16",
       7: "27→29 27⇒19 19→20", 8: "27→31 27⇒19 19→21"}
# By operation: ranks that are new, ranks so far, crossings so far.
COUNTS = {1: ({10}, 2, 0), 2: ({8, 9}, 4, 0), 3: (set(), 4, 0), 4: ({2, 3, 13}, 7, 1), 5: (set(), 7, 2), 6: (set(), 7, 2), 7: (set(), 7, 2),
          8: (set(), 7, 2), 9: ({4}, 8, 3), 10: (set(), 8, 4), 11: (set(), 8, 4), 12: (set(), 8, 4), 13: (set(), 8, 4), 14: ({15}, 9, 4),
          15: (set(), 9, 4), 16: (set(), 9, 4), 17: (set(), 9, 4), 18: (set(), 9, 4), 19: ({1, 6}, 11, 5), 20: (set(), 11, 6),
          21: ({27}, 12, 7), 22: ({26}, 13, 7), 23: ({24, 25}, 15, 7), 24: (set(), 15, 7), 25: ({19, 23, 28}, 18, 8), 26: (set(), 18, 9),
          27: (set(), 18, 9), 28: (set(), 18, 9), 29: (set(), 18, 9), 30: ({16}, 19, 10), 31: (set(), 19, 11), 32: (set(), 19, 11),
          33: (set(), 19, 11), 34: (set(), 19, 11), 35: ({20, 29}, 21, 12), 36: (set(), 21, 13), 37: (set(), 21, 13), 38: (set(), 21, 13),
          39: (set(), 21, 13), 40: ({21, 31}, 23, 14), 41: (set(), 23, 15)}
RANKS = [1, 2, 3, 4, 6, 8, 9, 10, 11, 13, 15, 16, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 31]


def hops_of(way):
    """(hops, where it stays) of a line of WAY."""
    hops = {tuple(map(int, hop.replace("⇒", "→").split("→"))) for hop in way.split() if "*" not in hop}
    return hops, {int(hop[:-1]) for hop in way.split() if "*" in hop}


def golden():
    """(layer, phase, op, hops, stays) of the 41 operations. Of an exchange in both directions the token takes one: its row goes from
    its home to the partner, keys from their rank to the other context rank."""
    rows = []
    for layer, way in WAY.items():
        home, tp, kv = (11, 10, [(11, 9), (10, 8)]) if layer <= 4 else (27, 26, [(27, 25), (26, 24)])
        out, stays = hops_of(way)
        rows += [(layer, "attention_gather", "all_gather", {(home, tp)}, set()),
                 (layer, "kv_exchange", "send", set(kv), set()),
                 (layer, "attention_sum", "reduce_scatter", {(tp, home)}, set()),
                 (layer, "dispatch", "dispatch", out, stays),
                 (layer, "combine", "combine", {(b, a) for a, b in out}, stays)]
        if layer == 4:
            rows.append((4, "stage_send", "send", {(11, 27)}, set()))
    return rows


def differences(said):
    """What in the answer is not as in the table; empty when all is."""
    found = []
    rows = golden()
    if len(said["itinerary"]) != len(rows):
        found.append(f"{len(said['itinerary'])} operations")
    for number, (got, want) in enumerate(zip(said["itinerary"], rows), 1):
        new, ranks, crossings = COUNTS[number]
        seen = (got["layer"], got["phase"], got["op"], set(map(tuple, got["hops"])), set(got["stays"]))
        counts = (got["operation"], set(got["new_ranks"]), got["ranks"], got["crossings"])
        if seen != want or counts != (number, new, ranks, crossings):
            found.append(f"operation {number}: {seen} {counts}")
    for key, want in (("operations", 41), ("crossings", 15), ("ranks", RANKS)):
        if said[key] != want:
            found.append(f"{key}: {said[key]}")
    return found


@pytest.fixture(scope="module")
def trace(sixfold, tmp_path_factory):
    experts = tmp_path_factory.mktemp("journey") / "experts.json"
    experts.write_text(json.dumps(EXPERTS))
    tokens = ",".join(str(i * 7 % 1000 + 3) for i in range(TOKENS))

    def run(*flags, mesh=MESH):
        return sixfold("trace", TOY, "--prompt-tokens", tokens, "--token", TOKEN, "--replica", REPLICA, "--mesh", mesh, "--ep", 16, "--nodes", 4,
                       "--sequence-parallel", "--attention-chunk", 64, "--experts", experts, "--json", *flags).json()
    return run


@pytest.fixture(scope="module")
def said(trace):
    return trace()


def test_the_table(said):
    assert not differences(said)
    crossing = [row["operation"] for before, row in zip([{"crossings": 0}, *said["itinerary"]], said["itinerary"])
                if row["crossings"] > before["crossings"]]
    assert crossing == [4, 5, 9, 10, 19, 20, 21, 25, 26, 30, 31, 35, 36, 40, 41]


def test_groups(said):
    groups = {row["operation"]: sorted(map(tuple, row["groups"])) for row in said["itinerary"]}
    assert groups[1] == [(10, 11)] and groups[2] == [(8, 10), (9, 11)] and groups[4] == [tuple(range(16))]
    assert groups[21] == [(11, 27)] and groups[25] == [tuple(range(16, 32))]


def test_keys_and_values_rest_on_four_ranks(said):
    assert [(kv["rank"], kv["layers"], kv["heads"]) for kv in said["kv"]] == [
        (10, [1, 4], [0, 2]), (11, [1, 4], [2, 4]), (26, [5, 8], [0, 2]), (27, [5, 8], [2, 4])]


def test_homes_and_experts(said):
    assert said["home"] == [{"layers": [1, 4], "ranks": [11]}, {"layers": [5, 8], "ranks": [27]}]
    assert said["experts"] == {str(layer): experts for layer, experts in EXPERTS.items()}


def test_links(said):
    assert {(hop["link"], hop["crosses"]) for hop in said["hops"]} == {("shm", False), ("ethernet", True)}
    assert sum(hop["crosses"] for hop in said["hops"]) == 15


@pytest.mark.parametrize("numerics", ["reproducible", "fast"])
def test_a_node_gets_one_copy(trace, numerics):
    """However many of its experts have the token: a row on its way out, and back one output a slot, or a relay's sum (fast)."""
    row = 192 * 2  # bytes
    back = collections.Counter()
    for hop in trace("--numerics", numerics)["hops"]:
        if hop["phase"] == "dispatch":
            assert hop["bytes"] == row, hop
        if hop["phase"] == "combine":
            back[hop["layer"], hop["crosses"]] += hop["bytes"]
    for layer in WAY:
        there = {expert // 2 + (0 if layer <= 4 else 16) for expert in EXPERTS[layer]}
        far = [rank for rank in there if rank // 8 != (1 if layer <= 4 else 3)]
        assert back[layer, True] == row * (len(far) if numerics == "reproducible" else min(1, len(far))), layer


@pytest.mark.parametrize("flags", [["--cp-comm-type", "all_gather"], ["--numerics", "fast"]])
def test_other_forms_of_the_same_rows(trace, flags):
    """An all-gather among two is the exchange under another name; in mode fast a relay sends one sum instead of two outputs."""
    found = trace(*flags)
    for row in found["itinerary"]:
        if row["phase"] == "kv_exchange":
            row["op"] = "send"
    assert not differences(found)


class TestMutants:
    """What the table must tell apart from the right journey, as far as flags reach it; tests/mesh/README.md has the others."""

    def test_direct_sends(self, trace):
        found = trace("--all2all-backend", "flat")
        assert differences(found)
        assert (found["crossings"], len(found["ranks"]), found["operations"]) == (17, 21, 41)

    def test_swapped_mesh(self, trace):
        found = trace(mesh="tp2,cp2,pp2,dp4")
        assert differences(found)
        home = found["home"][0]["ranks"]
        assert [node for node, ranks in enumerate(found["nodes"]) if set(home) <= set(ranks)] == [2]
        send = next(row for row in found["itinerary"] if row["phase"] == "stage_send")
        assert not any(hop["crosses"] for hop in found["hops"] if hop["operation"] == send["operation"])


def test_the_swap_costs_between_nodes(sixfold):
    """004: 0.38 T·d a layer and rank against 0.67 T·d, when relays sum (mode fast); uniform routes expect exactly that."""
    tokens = ",".join(str(i * 7 % 1000 + 3) for i in range(TOKENS))
    said = sixfold("trace", TOY, "--prompt-tokens", tokens, "--token", TOKEN, "--replica", REPLICA, "--mesh", MESH, "--ep", 16, "--nodes", 4,
                   "--sequence-parallel", "--attention-chunk", 64, "--numerics", "fast", "--compare", "tp2,cp2,pp2,dp4", "--json").json()
    one, two = said["compare"]
    assert round(one["experts_expected"], 3) == 0.379 and round(two["experts_expected"], 3) == 0.665
    for figures in (one, two):
        assert abs(figures["experts_sent"] / figures["experts_expected"] - 1) < 0.15
    assert (one["stage_sent"], two["stage_sent"]) == (0.25, 0)
