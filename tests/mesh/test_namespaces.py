"""Four network namespaces as four nodes: ranks of one node share memory, ranks of different nodes talk TCP."""
import json
import os
import signal
import subprocess
import time

import pytest

import mpi_job
from program import GOLDEN, ROOT
from test_faults import names_the_fault
from test_processes import verify

SCRIPT = ROOT / "tools" / "netns_mpirun.sh"
SLURM_SCRIPT = ROOT / "tools" / "netns_slurm.sh"
NODES, RANKS_PER_NODE = 4, 2
EXIT_CANNOT = 77


@pytest.fixture(scope="module", autouse=True)
def machine_allows_it():
    """The script says what is missing, such as the privileges that a container lacks."""
    done = subprocess.run([SCRIPT, "1", "1", "true"], capture_output=True, text=True, timeout=120)
    if done.returncode == EXIT_CANNOT:
        pytest.skip(done.stderr)


@pytest.fixture
def four_nodes():
    """The launcher; afterwards no namespace of it may be left."""
    def namespaces():
        return {line.split()[0] for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines()
                if line.startswith("sixfold-")}
    before = namespaces()
    yield [SCRIPT, NODES, RANKS_PER_NODE]
    assert namespaces() <= before


@pytest.mark.parametrize("script", [SCRIPT, SLURM_SCRIPT])
def test_without_privileges_the_scripts_say_so(script):
    done = subprocess.run(["setpriv", "--bounding-set=-sys_admin,-net_admin", script, "1", "1", "true"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == EXIT_CANNOT and "no network of namespaces" in done.stderr and "ermi" in done.stderr, done.stderr


def test_the_nodes_are_apart(four_nodes, tmp_path):
    code, out, err = mpi_job.run(8, ["sh", "-c", "echo $OMPI_COMM_WORLD_RANK $(hostname) $(ls -A /dev/shm | wc -l)"], tmp_path,
                                 launcher=four_nodes)
    assert code == 0, err
    rows = sorted(line.split() for line in out.splitlines())
    assert [row[:2] for row in rows] == [[str(rank), f"node{rank // RANKS_PER_NODE}"] for rank in range(8)]


@pytest.mark.parametrize("name, decode_steps, lines", [
    ("qwen2_window", 32, ["-dp 4 -tp 2 --nodes 4", "--mesh pp4,tp2 --nodes 4"]),
    ("qwen3_moe_mixed", 8, ["--mesh tp2,pp4 --sequence-parallel --nodes 4", "--mesh tp4,dp2 --nodes 4"])])
def test_equal_bits_and_bytes_by_link(sixfold, four_nodes, tmp_path, name, decode_steps, lines):
    rows = verify(8, sixfold, GOLDEN / name, tmp_path, lines, "--decode-steps", decode_steps, launcher=four_nodes)
    assert [(row["layout"], row["nodes"], row["steps"]) for row in rows] == [(line, 4, decode_steps + 1) for line in lines]


def test_experts_over_sixteen_processes_on_two_nodes(sixfold, four_nodes, tmp_path):
    lines = ["--mesh tp2,dp8 --ep 4 --etp 2 --nodes 2", "--mesh tp2,dp4,pp2 --ep 4 --nodes 2 --sequence-parallel",
             "--mesh tp2,dp8 --ep 4 --nodes 2 --all2all-backend flat"]
    rows = verify(16, sixfold, GOLDEN / "olmoe", tmp_path, lines, "--decode-steps", 8, launcher=[SCRIPT, 2, 8])
    assert [(row["layout"], row["nodes"]) for row in rows] == [(line, 2) for line in lines]
    lines = ["--mesh tp2,dp8 --ep 16 --nodes 2", "--mesh tp2,dp4,pp2 --ep 8 --nodes 2"]
    rows = verify(16, sixfold, ROOT / "models" / "toy", tmp_path, lines, "--decode-steps", 8, launcher=[SCRIPT, 2, 8])
    assert [(row["layout"], row["nodes"]) for row in rows] == [(line, 2) for line in lines]


def test_logits_and_stats_are_those_of_threads(sixfold, four_nodes, tiny, prompt, tmp_path):
    ask = [sixfold.binary, "logits", tiny, "--tokens", prompt(tiny), "--mesh", "tp4,pp2", "--nodes", 4]
    code, _, err = mpi_job.run(8, [*ask, "--output", tmp_path / "nodes", "--stats", tmp_path / "nodes.json"], tmp_path,
                               launcher=four_nodes)
    assert code == 0, err
    assert sixfold(*ask[1:], "--output", tmp_path / "threads", "--stats", tmp_path / "threads.json").code == 0
    assert (tmp_path / "nodes").read_bytes() == (tmp_path / "threads").read_bytes()
    nodes, threads = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("nodes", "threads")]
    assert nodes["collectives"] == threads["collectives"]
    assert {row["link"] for row in nodes["collectives"]} == {"shm", "ethernet"}
    assert [row["node"] for row in nodes["ranks"]] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_layout_that_cannot_run_gives_2_here_too(sixfold, four_nodes, tiny, tmp_path):
    code, _, err = mpi_job.run(8, [sixfold.binary, "logits", tiny, "--tokens", "1", "--output", tmp_path / "x", "-tp", 8], tmp_path,
                               launcher=four_nodes)
    assert code == 2 and "4 query heads" in err


class TestFaults:
    TIMEOUT_S = 3

    @pytest.fixture
    def generating(self, sixfold, talkative, tmp_path):
        """(job, pids of its two ranks, prefix of its namespaces): two nodes that generate without end."""
        command = [sixfold.binary, "generate", talkative, "--prompt-tokens", "1,2,3", "--max-tokens", 60000, "--ignore-eos", "-tp", 2,
                   "--nodes", 2, "--comm-timeout", self.TIMEOUT_S]
        with mpi_job.Job(2, command, tmp_path, launcher=[SCRIPT, 2, 1]) as job:
            pids = job.ranks(2)
            job.wait_for(r"(?s).{20}")  # an answer has begun
            yield job, pids, f"sixfold-{job.process.pid}-"
        assert f"sixfold-{job.process.pid}-" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout

    def test_a_node_that_dies_ends_all(self, generating):
        job, _, prefix = generating
        for pid in subprocess.run(["ip", "netns", "pids", prefix + "n1"], capture_output=True, text=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        assert job.wait(60) != 0

    def test_ranks_on_both_sides_of_a_cut_cable_end_and_one_says_why(self, generating):
        job, pids, prefix = generating
        subprocess.run(["ip", "-n", prefix + "switch", "link", "set", "port1", "down"], check=True)
        deadline = time.monotonic() + self.TIMEOUT_S + 30
        while any(mpi_job.state_of(pid) for pid in pids):
            assert time.monotonic() < deadline, job.err
            time.sleep(0.1)
        # Open MPI's launcher now waits for the node that it cannot reach; the fixture ends it.
        assert names_the_fault(job.err, stopped=1, waiting=0), job.err
