"""Ranks as processes under mpirun: the bits and bytes of threads, and exit codes that scripts can rely on."""
import json

import pytest

import mpi_job
import tiny_models
from program import GOLDEN

pytestmark = pytest.mark.skipif(mpi_job.MPIRUN is None, reason="no mpirun.openmpi here (openmpi-bin)")

# Flags by number of processes.
LAYOUTS = {
    2: ["-tp 2", "-tp 2 --sequence-parallel", "-pp 2", "-dp 2 --nodes 2"],
    8: ["--mesh tp2,dp2,pp2 --sequence-parallel", "--mesh pp2,tp4", "--mesh dp4,tp2 --nodes 4", "-tp 4 -dp 2 --sequence-parallel",
        "-dp 8"],
    32: ["--mesh tp4,dp4,pp2 --sequence-parallel --nodes 4", "--mesh pp2,dp4,tp4"],
}


def layouts_file(folder, lines):
    path = folder / "layouts"
    path.write_text("\n".join(lines) + "\n")
    return path


def verify(ranks, sixfold, model, folder, lines, *flags, **kwargs):
    """The rows of a `verify` under mpirun."""
    code, out, err = mpi_job.run(ranks, [sixfold.binary, "verify", model, "--layouts", layouts_file(folder, lines), "--json", *flags],
                                 folder, **kwargs)
    assert code == 0, err
    said = json.loads(out)
    assert said["failed"] == said["not_run"] == 0
    for row in said["layouts"]:
        assert row["equal"] and row["bytes_equal"] and row["ranks"] == ranks
        assert row["counted_bytes"] == row["predicted_bytes"] > 0
    return said["layouts"]


class TestVerify:
    @pytest.mark.parametrize("ranks", sorted(LAYOUTS))
    def test_equal_bits_and_predicted_bytes(self, sixfold, tiny, tmp_path, ranks):
        rows = verify(ranks, sixfold, tiny, tmp_path, LAYOUTS[ranks])
        assert [row["layout"] for row in rows] == LAYOUTS[ranks]

    @pytest.mark.parametrize("name", ["qwen3", "olmoe", "mixtral", "gpt_oss_mxfp4", "qwen3_fp8", "llama_gguf_q32/model.gguf"])
    def test_other_models_with_two(self, sixfold, tmp_path, name):
        lines = ["-pp 2", "-dp 2"] if name == "qwen3_fp8" else LAYOUTS[2]
        assert len(verify(2, sixfold, GOLDEN / name, tmp_path, lines)) == len(lines)

    def test_only_layouts_of_as_many_ranks_as_processes_run(self, sixfold, tiny, tmp_path):
        rows = verify(2, sixfold, tiny, tmp_path, ["-tp 4", "-tp 2", "--mesh tp2,pp2", "-pp 2"])
        assert [row["layout"] for row in rows] == ["-tp 2", "-pp 2"]
        threads = {row["layout"]: row for row in sixfold("verify", tiny, "--layouts", tmp_path / "layouts", "--json").json()["layouts"]}
        for row in rows:
            assert row["counted_bytes"] == threads[row["layout"]]["counted_bytes"]

    def test_smollm2_with_two(self, sixfold, smollm2, tmp_path):
        rows = verify(2, sixfold, smollm2, tmp_path, ["-tp 2", "-pp 2"], "--decode-steps", "4", timeout=400)
        assert len(rows) == 2


class TestLogits:
    @pytest.mark.parametrize("ranks, flags", [(2, "-tp 2"), (4, "--mesh tp2,pp2 --sequence-parallel"), (6, "--mesh dp2,tp3"),
                                              (8, "--mesh pp2,tp4 --nodes 2")])
    @pytest.mark.parametrize("name", ["llama_gqa", "olmoe"])
    def test_the_file_is_that_of_threads_and_of_one_rank(self, sixfold, prompt, tmp_path, name, ranks, flags):
        model = GOLDEN / name
        ask = ["logits", model, "--tokens", prompt(model)]
        stats = [tmp_path / "threads.json", tmp_path / "processes.json"]
        assert sixfold(*ask, "--output", tmp_path / "one").code == 0
        assert sixfold(*ask, "--output", tmp_path / "threads", *flags.split(), "--stats", stats[0]).code == 0
        code, out, err = mpi_job.run(ranks, [sixfold.binary, *ask, "--output", tmp_path / "processes", *flags.split(),
                                             "--stats", stats[1]], tmp_path)
        assert code == 0 and out == "", err
        one = (tmp_path / "one").read_bytes()
        assert (tmp_path / "threads").read_bytes() == one and (tmp_path / "processes").read_bytes() == one
        threads, processes = [json.loads(path.read_text()) for path in stats]
        assert processes["world"] == ranks and processes["collectives"] == threads["collectives"]
        for row in processes["collectives"]:
            assert row["counted_bytes"] == row["predicted_bytes"] and row["count"] == row["predicted_count"]

    def test_generate_says_what_one_rank_says_once(self, sixfold, talkative, tmp_path):
        ask = ["generate", talkative, "--prompt", "Once", "--max-tokens", 40, "--seed", 5, "-n", 2, "--ignore-eos", "--json"]
        code, out, err = mpi_job.run(4, [sixfold.binary, *ask, "-tp", 2, "-dp", 2], tmp_path)
        assert code == 0, err
        assert json.loads(out) == sixfold(*ask).json()

    def test_one_process_runs_ranks_as_threads(self, sixfold, tiny, tmp_path):
        code, _, err = mpi_job.run(1, [sixfold.binary, "logits", tiny, "--tokens", "1,2,3", "--output", tmp_path / "logits", "-tp", 4],
                                   tmp_path)
        assert code == 0, err


class TestExitCodes:
    def logits(self, sixfold, ranks, model, folder, *flags):
        return mpi_job.run(ranks, [sixfold.binary, "logits", model, "--tokens", "1,2", "--output", folder / "logits", *flags], folder,
                           timeout=60)

    def test_a_layout_that_cannot_run_gives_2(self, sixfold, tiny, tmp_path):
        code, _, err = self.logits(sixfold, 8, tiny, tmp_path, "-tp", 8)
        assert code == 2 and err.count("4 query heads") == 1, err

    def test_a_wrong_option_gives_2(self, sixfold, tiny, tmp_path):
        code, _, err = self.logits(sixfold, 2, tiny, tmp_path, "-tp", 2, "--bogus")
        assert code == 2 and "--bogus" in err

    @pytest.mark.parametrize("command", ["logits", "verify"])
    def test_links_cannot_be_emulated_between_processes(self, sixfold, tiny, tmp_path, command):
        if command == "logits":
            code, _, err = self.logits(sixfold, 2, tiny, tmp_path, "-tp", 2, "--emulate-links")
        else:
            code, _, err = mpi_job.run(2, [sixfold.binary, "verify", tiny, "-tp", 2, "--emulate-links"], tmp_path, timeout=60)
        assert code == 2 and err.count("--emulate-links") == 1 and "without mpirun" in err, err

    @pytest.mark.parametrize("flags", [["-tp", 4], ["-dp", 3], []])
    def test_another_number_of_processes_gives_2_and_a_mesh_that_fits(self, sixfold, tiny, tmp_path, flags):
        code, _, err = self.logits(sixfold, 2, tiny, tmp_path, *flags)
        assert code == 2 and "2 processes" in err and "--mesh tp2" in err, err
        assert err.count("2 processes") == 1  # one rank speaks for all

    def test_a_missing_file_gives_3(self, sixfold, tmp_path):
        code, _, err = self.logits(sixfold, 2, tmp_path / "none", tmp_path, "-tp", 2)
        assert code == 3 and err.count("no such file") == 1, err

    def test_no_layout_of_so_many_ranks_gives_2(self, sixfold, tiny, tmp_path):
        code, _, err = mpi_job.run(3, [sixfold.binary, "verify", tiny, "--layouts", layouts_file(tmp_path, ["-tp 2"])], tmp_path)
        assert code == 2 and "3 ranks" in err, err

    def test_a_file_that_only_another_rank_misses_is_told_by_that_rank(self, sixfold, tiny, tmp_path):
        common = ["--tokens", "1,2", "-tp", "2", "--output"]
        command = [sixfold.binary, "logits", tiny, *common, tmp_path / "a", ":", "-n", 1,
                   sixfold.binary, "logits", tmp_path / "none", *common, tmp_path / "b"]
        code, _, err = mpi_job.run(1, command, tmp_path, timeout=60)
        assert code == 3 and "rank 1" in err and "no such file" in err, err
        assert not (tmp_path / "a").exists()

    def test_with_another_field_in_the_config(self, sixfold, tmp_path):
        """The same weights: only config.json tells the two apart."""
        other = tiny_models.copy("llama_gqa", tmp_path / "other", rms_norm_eps=1e-4)
        ask = ["-tp", "2", "--tokens", "1,2", "--output", tmp_path / "logits"]
        command = [sixfold.binary, "logits", GOLDEN / "llama_gqa", *ask, ":", "-n", "1", sixfold.binary, "logits", other, *ask]
        code, _, err = mpi_job.run(1, command, tmp_path, timeout=60)
        assert code == 2 and "rank 1" in err and "same files and flags" in err, err

    def test_with_one_other_byte_in_the_middle_of_a_tensor(self, sixfold, tmp_path):
        other = tiny_models.copy("llama_gqa", tmp_path / "other")
        file = other / "model.safetensors"
        raw = bytearray(file.read_bytes())
        begin = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:begin])
        header.pop("__metadata__", None)
        tensor = max(header.values(), key=lambda entry: entry["data_offsets"][1] - entry["data_offsets"][0])["data_offsets"]
        assert tensor[1] - tensor[0] > 3 * 4096
        raw[begin + sum(tensor) // 2] ^= 1
        file.unlink()
        file.write_bytes(raw)
        ask = ["-tp", "2", "--tokens", "1,2", "--output", tmp_path / "logits"]
        command = [sixfold.binary, "logits", GOLDEN / "llama_gqa", *ask, ":", "-n", "1", sixfold.binary, "logits", other, *ask]
        code, _, err = mpi_job.run(1, command, tmp_path, timeout=60)
        assert code == 2 and "rank 1" in err and "'weights " in err and "same files and flags" in err, err

    def test_with_another_placement_of_experts(self, sixfold, tmp_path):
        for rank in range(2):
            (tmp_path / f"placement{rank}").write_text(json.dumps({"1": [rank, 1 - rank] * 2}))
        command = [sixfold.binary, "logits", GOLDEN / "mixtral", "--tokens", "5", "--output", tmp_path / "x", "--mesh", "dp2", "--ep", 2]
        own = f"exec \"$@\" --expert-placement {tmp_path}/placement$OMPI_COMM_WORLD_RANK"
        code, _, err = mpi_job.run(2, ["sh", "-c", own, "sh", *command], tmp_path)
        assert code == 2 and "rank 1" in err and "same files and flags" in err, err

    @pytest.mark.parametrize("other, flags", [("qwen3", []), ("llama_gqa", ["--dtype", "bf16"]), ("llama_gqa", ["--numerics", "fast"])])
    def test_a_rank_with_another_model_or_other_options_is_refused_by_number(self, sixfold, tmp_path, other, flags):
        ask = ["-tp", "2", "--tokens", "1,2", "--output", tmp_path / "logits"]
        command = [sixfold.binary, "logits", GOLDEN / "llama_gqa", *ask, ":", "-n", "1", sixfold.binary, "logits", GOLDEN / other, *ask, *flags]
        code, _, err = mpi_job.run(1, command, tmp_path, timeout=60)
        assert code == 2 and "rank 1" in err and "another model or other options" in err
        assert not (tmp_path / "logits").exists()
