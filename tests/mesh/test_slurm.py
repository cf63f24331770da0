"""Ranks under srun, on a Slurm cluster whose four nodes are network namespaces (tools/netns_slurm.sh)."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

import mpi_job
from program import GOLDEN, ROOT
from test_faults import names_the_fault
from test_processes import verify

SCRIPT = ROOT / "tools" / "netns_slurm.sh"
NODES, CPUS_PER_NODE = 4, 4
EXIT_CANNOT = 77


def namespaces():
    return {line.split()[0] for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines()}


class Cluster:
    """A Slurm cluster that runs until close()."""

    def __init__(self, folder):
        self.log = folder / "cluster.log"
        with open(self.log, "wb") as log:
            # Echoes its folder when it is up, and ends with its stdin.
            self.process = subprocess.Popen([SCRIPT, str(NODES), str(CPUS_PER_NODE), "sh", "-c", 'echo "$NETNS_SLURM"; exec cat'],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        timer = threading.Timer(120, self.process.terminate)
        timer.start()
        self.folder = self.process.stdout.readline().strip()
        timer.cancel()
        if not self.folder:
            code = self.process.wait(30)
            if code == EXIT_CANNOT:
                pytest.skip(self.log.read_text())
            raise AssertionError(f"no cluster, exit code {code}: {self.log.read_text()}")
        self.environment = {"SLURM_CONF": self.folder + "/slurm.conf", "NETNS_SLURM": self.folder}

    def on(self, node, *command):
        return [self.folder + "/enter", str(node), *map(str, command)]

    def srun(self, nodes, *flags):
        """A launcher of 8 tasks. Unbuffered: srun would pass on whole lines only."""
        return self.on(0, "srun", "--mpi=pmix", "--unbuffered", "-N", nodes, "-n", 8, f"--ntasks-per-node={8 // nodes}", *flags)

    def ask(self, node, *command, **kwargs):
        done = subprocess.run(self.on(node, *command), env=os.environ | self.environment, capture_output=True, text=True, timeout=120, **kwargs)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def sent_bytes(self, node):
        return int(self.ask(node, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def close(self):
        self.process.stdin.close()
        try:
            assert self.process.wait(60) == 0, self.log.read_text()
        finally:
            if self.process.poll() is None:
                self.process.terminate()  # takes the cluster down, too
                self.process.wait(60)
            self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """After the tests nothing of it is left: no folder, no network namespace, no process of its daemons."""
    before = namespaces() if shutil.which("ip") else set()
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    own = namespaces() - before
    pids = {pid for name in own for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()}
    assert len(own) == NODES + 1 and len(pids) >= NODES + 2  # a slurmd on each, slurmctld, munged
    yield cluster
    cluster.close()
    assert not pathlib.Path(cluster.folder).exists() and not namespaces() & own
    assert [pid for pid in pids if mpi_job.state_of(pid) not in (None, "Z")] == []


@pytest.mark.parametrize("nodes, lines", [(2, ["--mesh tp4,pp2 --nodes 2", "--mesh tp2,dp2,pp2 --nodes 2 --sequence-parallel"]),
                                          (4, ["--mesh tp2,pp4 --nodes 4", "--mesh tp4,dp2 --nodes 4"])])
def test_equal_bits_and_bytes_over_nodes(sixfold, cluster, tmp_path, nodes, lines):
    rows = verify(8, sixfold, GOLDEN / "qwen3_moe_mixed", tmp_path, lines, "--decode-steps", 4, launcher=cluster.srun(nodes),
                  env=cluster.environment)
    assert [(row["layout"], row["nodes"]) for row in rows] == [(line, nodes) for line in lines]


@pytest.mark.parametrize("nodes", [2, 4])
def test_logits_are_those_of_one_rank_and_came_over_the_network(sixfold, cluster, tiny, prompt, tmp_path, nodes):
    ask = ["logits", tiny, "--tokens", prompt(tiny)]
    assert sixfold(*ask, "--output", tmp_path / "one").code == 0
    before = [cluster.sent_bytes(node) for node in range(NODES)]
    code, _, err = mpi_job.run(8, [sixfold.binary, *ask, "--output", tmp_path / "tasks", "--mesh", "tp4,pp2", "--nodes", nodes,
                                   "--stats", tmp_path / "stats"], tmp_path, launcher=cluster.srun(nodes), env=cluster.environment)
    assert code == 0, err
    assert (tmp_path / "tasks").read_bytes() == (tmp_path / "one").read_bytes()
    stats = json.loads((tmp_path / "stats").read_text())
    assert [row["node"] for row in stats["ranks"]] == [rank * nodes // 8 for rank in range(8)]
    counted = sum(row["counted_bytes"] for row in stats["collectives"] if row["link"] == "ethernet")
    sent = sum(cluster.sent_bytes(node) - before[node] for node in range(NODES))
    assert 0 < counted <= sent, (counted, sent)


class TestFaults:
    TIMEOUT_S = 3
    VICTIM = 5  # the second task of the third node

    @pytest.fixture
    def generating(self, sixfold, cluster, talkative, tmp_path):
        """(job, pids of its tasks): four nodes that generate without end."""
        command = [sixfold.binary, "generate", talkative, "--prompt-tokens", "1,2,3", "--max-tokens", 60000, "--ignore-eos", "--mesh",
                   "tp4,pp2", "--nodes", 4, "--comm-timeout", self.TIMEOUT_S]
        with mpi_job.Job(8, command, tmp_path, launcher=cluster.srun(4), env=cluster.environment) as job:
            pids = job.ranks(8)
            job.wait_for(r"(?s).{20}")  # an answer has begun
            yield job, pids

    def test_a_killed_task_ends_the_job_and_is_named(self, generating):
        job, pids = generating
        os.kill(pids[self.VICTIM], signal.SIGKILL)
        assert job.wait(60) == 128 + signal.SIGKILL
        assert re.search(rf"node2: tasks? {self.VICTIM}: Killed", job.err), job.err

    def test_a_stopped_task_ends_the_job_with_the_engines_message(self, generating):
        job, pids = generating
        os.kill(pids[self.VICTIM], signal.SIGSTOP)
        assert job.wait(self.TIMEOUT_S + 60) not in (0, 2, 3, 4)
        assert names_the_fault(job.err, stopped=self.VICTIM), job.err


def test_the_batch_script_of_the_documentation(sixfold, cluster, tmp_path):
    """Its output is the one that is shown there, and what one rank says."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    script, shown = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```.*?```text\n(.*?)```", text, re.DOTALL).groups()
    (tmp_path / "sixfold.sh").write_text(script)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sixfold").symlink_to(sixfold.binary)
    toy = ROOT / "models" / "toy"
    environment = sixfold.environment(MODEL=str(toy), PATH=f"{tmp_path}/bin:{os.environ['PATH']}", **cluster.environment)
    job = subprocess.run(cluster.on(0, "sbatch", "--parsable", "sixfold.sh"), env=environment, cwd=tmp_path, capture_output=True, text=True,
                         timeout=60)
    assert job.returncode == 0, job.stderr
    number = job.stdout.strip()

    def output(kind):
        path = tmp_path / f"sixfold-{number}.{kind}"
        return path.read_text() if path.exists() else ""
    deadline = time.monotonic() + 180
    while (state := re.search(r"JobState=(\w+)", cluster.ask(0, "scontrol", "show", "job", number, "-o")).group(1)) in (
            "PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
        assert time.monotonic() < deadline, (state, output("err"), output("server"))
        time.sleep(0.25)
    assert state == "COMPLETED", (state, output("err"), output("server"))
    assert output("out") == shown, output("err")
    one = sixfold("generate", toy, "--prompt", "Once upon a time", "--max-tokens", 16, "--json").json()
    assert shown.splitlines() == [one["text"], f'"text":"{one["text"]}"']
    assert "drained" in output("server")


def test_the_cluster_is_taken_down_after_a_failure_too(cluster):
    """The command's exit code comes back, and a second cluster may run beside the first."""
    before = namespaces()
    done = subprocess.run([SCRIPT, "1", "1", "sh", "-c", 'echo "$NETNS_SLURM"; exit 7'], capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    folder = done.stdout.strip()
    assert folder.startswith(str(ROOT / "build")) and not pathlib.Path(folder).exists()
    assert namespaces() == before
