"""sixfold bytes: the seed documents' numbers, the forms of its answers, and what to type after a mistake."""
import pytest

MIB = 1 << 20
TP = ["tp", "--ranks", 8, "--seq", 4096, "--hidden", 8192]
EP = ["ep", "--ranks", 8, "--seq", 4096, "--hidden", 8192, "--top-k", 2]
CP = ["cp", "--ranks", 4, "--seq", 131072, "--heads", 32, "--kv-heads", 8, "--head-dim", 128]
HANDOFF = ["handoff", "--seq", 2048, "--layers", 96, "--kv-heads", 96, "--head-dim", 128]


def answer(sixfold, *arguments, **kwargs):
    return sixfold("bytes", *arguments, "--json", **kwargs).json()


def test_tp_and_sp_pay_4_4_8_and_4_6_10_units(sixfold):
    found = answer(sixfold, *TP)["bytes"]
    unit = 56 * MIB
    assert found["activation"] == 64 * MIB and found["unit"] == unit
    for name, units in (("tp", (4, 4, 8)), ("tp_sp", (4, 4, 8)), ("tp_sp_rebuild", (4, 6, 10))):
        assert [found[f"{name}_{way}"] for way in ("forward", "backward", "both")] == [n * unit for n in units]
    sites = answer(sixfold, "sp", *TP[1:])["bytes"]
    assert sites["shard"] == 8 * MIB
    ways = [value for key, value in sites.items() if key.startswith(("attention_", "ffn_"))]
    assert ways == [unit] * 10
    assert sum(value for key, value in sites.items() if key.endswith("_rebuild_backward")) == 2 * unit


def test_layers_batch_and_element_size_multiply(sixfold):
    found = answer(sixfold, *TP, "--layers", 80, "--batch", 2, "--dtype-bytes", 1)
    assert found["bytes"]["tp_forward"] == 80 * 4 * 56 * MIB
    assert found["bytes"]["activation"] == 64 * MIB
    assert found["counts"]["collectives_per_step"] == 160
    assert found["inputs"] == {"ranks": 8, "seq": 4096, "hidden": 8192, "batch": 2, "layers": 80, "dtype_bytes": 1}


def test_dispatch_and_combine_over_eight_ranks(sixfold):
    top2 = answer(sixfold, *EP)["bytes"]
    assert [top2[key] // MIB for key in ("dispatch_logical", "dispatch_remote", "remote", "per_rank", "per_pair")] \
        == [128, 112, 224, 28, 2]
    top16 = answer(sixfold, *EP[:-1], 16)["bytes"]
    assert top16["remote"] == 1.75 * 1024 * MIB
    assert all(top16[key] == 8 * top2[key] for key in top2 if key != "row")


def test_one_copy_a_node_on_the_journeys_experts(sixfold):
    found = answer(sixfold, "ep", "--ranks", 16, "--nodes", 2, "--seq", 8192, "--hidden", 4096, "--top-k", 2, "--experts", 32)
    assert found["counts"]["remote_nodes"] == pytest.approx(1 - 16 / 32 * 15 / 31)
    # A rank has T/16 tokens: 2·0.758·(T/16)·d elements of two bytes.
    assert found["bytes"]["between_nodes"] == pytest.approx(2 * 0.758065 * 8192 / 16 * 4096 * 2, rel=1e-6)
    assert found["bytes"]["between_nodes_unsummed"] > found["bytes"]["between_nodes"]
    assert found["counts"]["ep_over_unfused_tp"] == 0.5 and found["counts"]["ep_over_fused_tp"] == 1


def test_forms_of_context_parallelism(sixfold):
    found = answer(sixfold, *CP, "--ulysses-ranks", 2)["bytes"]
    kv = 2 * 131072 * 8 * 128 * 2
    assert found["kv"] == kv
    assert found["all_gather_per_rank"] == found["p2p_per_rank"] == found["striped_per_rank"] == kv * 3 // 4
    assert found["a2a_per_rank"] == 2 * 131072 * 40 * 128 * 2 * 3 // 16
    assert found["all_gather_kv_peak"] == kv and found["p2p_kv_peak"] == kv // 2
    assert {"a2a_p2p_per_rank", "pass_q_per_rank"} <= set(found)
    one = answer(sixfold, *CP, "--form", "p2p")
    assert set(one["bytes"]) == {"kv", "p2p_per_rank", "p2p_all_ranks", "p2p_kv_peak"}
    assert one["counts"] == {"p2p_rounds": 3} and one["inputs"]["form"] == "p2p"


def test_sends_between_stages_and_handoff(sixfold):
    stages = answer(sixfold, "pp", "--ranks", 4, "--seq", 1024, "--hidden", 16384)
    assert stages["bytes"] == {"send": 32 * MIB, "total": 96 * MIB} and stages["counts"] == {"sends": 3}
    opt = answer(sixfold, *HANDOFF, "--bandwidth-gb-s", 512, "--fixed-ms", 1)
    assert opt["bytes"] == {"token": 4718592, "request": 9 << 30}
    assert opt["ms"]["request"] == pytest.approx(19.874, abs=0.001)
    assert answer(sixfold, "handoff", "--seq", 1, "--layers", 61, "--mla-rank", 512)["bytes"]["token"] == 70272


def test_text_shows_formula_numbers_and_both_units(sixfold):
    text = sixfold("bytes", *TP)
    assert text.code == 0 and text.err == ""
    line = next(line for line in text.out.splitlines() if line.startswith("TP+SP, inputs gathered again: both"))
    assert line.split() == "TP+SP, inputs gathered again: both 10·u = 10·58720256 587,202,560 560 MiB".split()
    assert "4096·1·8192·2" in text.out
    assert all(len(line) <= 140 for line in text.out.splitlines())


@pytest.mark.parametrize("mode", [TP, ["sp", *TP[1:]], EP, CP, ["pp", *TP[1:]], HANDOFF], ids=lambda mode: mode[0])
def test_every_number_has_its_formula_and_text_and_json_agree(sixfold, mode):
    found = answer(sixfold, *mode)
    assert list(found) == ["mode", "inputs", "bytes", "counts", "formulas", "notes"] and found["mode"] == mode[0]
    assert set(found["formulas"]) == set(found["bytes"]) | set(found["counts"])
    text = sixfold("bytes", *mode).out
    for value in found["bytes"].values():
        assert f"{round(value):,}" in text


def test_settings_come_from_environment_and_file_as_well(sixfold, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("hidden = 8192\n[bytes]\nseq = 4096\n")
    assert answer(sixfold, "tp", "--config", file, env={"SIXFOLD_RANKS": "8"})["bytes"]["unit"] == 56 * MIB
    # A variable may serve another mode; a flag may not.
    assert answer(sixfold, *TP, env={"SIXFOLD_EXPERTS": "4"})["bytes"]["unit"] == 56 * MIB


@pytest.mark.parametrize("arguments, said", [
    ([], "(tp|sp|cp|ep|pp|handoff)"),
    (["tq"], "did you mean 'tp'"),
    (["tp"], "tp needs --ranks, --seq, --hidden; for example: sixfold bytes tp --ranks 8 --seq 4096 --hidden 8192"),
    (["tp", "--ranks", 8, "--seq", 4096], "tp needs --hidden"),
    ([*TP, "--experts", 4], "tp does not read --experts"),
    ([*TP, "more"], "unexpected argument 'more'"),
    (["tp", "--ranks", 0, "--seq", 1, "--hidden", 1], "1 to 65536"),
    (["tp", "--rank", 8], "did you mean '--ranks'"),
    (["tp", "--ranks", 8, "--seq", 1000000000, "--batch", 1000000, "--hidden", 16777216], "beyond 2^63"),
    ([*EP[:-1], 0], "--top-k: expected an integer from 1 to"),
    ([*EP, "--experts", 1], "--top-k 2 is above --experts 1"),
    ([*EP, "--experts", 4], "--ranks 8 is above --experts 4"),
    ([*EP, "--nodes", 3], "do not come out equal on --nodes 3"),
    ([*CP, "--form", "ring"], "expected one of all, all_gather, p2p"),
    ([*CP, "--form", "a2a+p2p"], "needs --ulysses-ranks"),
    ([*CP, "--ulysses-ranks", 3], "does not divide --ranks 4"),
    ([*CP, "--heads", 9], "--heads 9 is no multiple of --kv-heads 8"),
    (["handoff", "--seq", 1], "--kv-heads and --head-dim, or --mla-rank"),
    ([*HANDOFF, "--mla-rank", 512], "not both"),
    ([*HANDOFF, "--bandwidth-gb-s", 0], "expected a number"),
])
def test_mistakes_end_with_2_and_what_to_type(sixfold, arguments, said):
    found = sixfold("bytes", *arguments)
    assert found.code == 2 and said in found.err, found.err
    assert found.out == "" and found.err.count("\n") == 1
