"""What happens to clients and processes when a rank is stopped or killed, and when somebody ends a server on purpose."""
import os
import re
import signal
import subprocess
import threading
import time

import pytest

import mpi_job
import serving

TIMEOUT_S = 3  # --comm-timeout
# Until everything is over: the time-out, what the leader gets to tell its clients, and what mpirun takes to kill (a loaded
# machine is given some more).
END_S = TIMEOUT_S + 22

# Who finds it first may wait for a rank that waits itself: the chain of waits then ends at the stopped one.
PROCESS = r"(?: \([^()]+\))?"  # host and pid, where the message first names the rank
WAITED = r"rank {waiting}" + PROCESS + r" wait(?:ed [0-9.]+ s|s) for rank {stopped}" + PROCESS + r" in \w+ \d+ of [a-z]+ group \d+ \((layer \d+, )?step \d+\)"
LAST_SEEN = r"rank {stopped}" + PROCESS + r" was last seen in (layer \d+, )?step \d+ \(last operation: .+\) and made no progress since"

needs_mpi = pytest.mark.skipif(mpi_job.MPIRUN is None, reason="no mpirun.openmpi here (openmpi-bin)")


def names_the_fault(text, stopped, waiting=r"\d+"):
    """Who waited for whom, in which operation of which layer and step; which operation it is, is chance."""
    return (re.search(WAITED.format(waiting=waiting, stopped=stopped), text) and
            re.search(LAST_SEEN.format(stopped=stopped), text))


class Clients:
    """Streams that go on until something ends them."""

    def __init__(self, url, count):
        self.ends = [None] * count  # (events, how it ended)
        self.started = [threading.Event() for _ in range(count)]
        self.threads = [threading.Thread(target=self._ask, args=(url, n), daemon=True) for n in range(count)]
        for thread in self.threads:
            thread.start()

    def _ask(self, url, n):
        self.ends[n] = serving.stream(url, prompt=[1, 2, 3 + n], max_tokens=60000, ignore_eos=True, temperature=0,
                                      on_event=self.started[n].set)

    def wait_until_all_stream(self):
        for started in self.started:
            assert started.wait(60), "no token came"

    def wait(self, timeout):
        for thread in self.threads:
            thread.join(timeout)
            assert not thread.is_alive(), "a client still waits"
        return self.ends


class Health(threading.Thread):
    """Asks /health again and again; `seen` are the different answers in order."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.seen, self.stop = url, [], False
        self.start()

    def run(self):
        while not self.stop:
            answer = serving.get(self.url + "/health", timeout=1)
            if answer != (self.seen or [None])[-1]:
                self.seen.append(answer)
            time.sleep(0.1)

    def texts_of(self, status):
        self.stop = True
        self.join()
        return [text for code, text in self.seen if code == status]


@pytest.fixture
def served(sixfold, talkative, tmp_path):
    """mesh → a running `serve` under mpirun, its URL, pids of its ranks."""
    jobs = []

    def start(mesh, ranks, *flags, launcher_flags=(), timeout_s=TIMEOUT_S):
        launcher = [mpi_job.MPIRUN, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", *launcher_flags, "-n", str(ranks)]
        job = mpi_job.Job(ranks, [sixfold.binary, "serve", talkative, "--port", 0, "--mesh", mesh, "--comm-timeout", timeout_s, *flags],
                          tmp_path, launcher=launcher)
        jobs.append(job.__enter__())
        url = job.wait_for(r"http://[0-9.:]+\d").group()
        return job, url, job.ranks(ranks)

    yield start
    for job in jobs:
        job.__exit__()


@needs_mpi
class TestServe:
    @pytest.mark.parametrize("mesh, ranks, victim", [("tp2", 2, 1), ("tp2,pp2", 4, 3)])
    def test_a_stopped_rank_is_named_to_all_who_wait(self, served, mesh, ranks, victim):
        job, url, pids = served(mesh, ranks)
        clients = Clients(url, 4)
        clients.wait_until_all_stream()
        health, begin = Health(url), time.monotonic()
        os.kill(pids[victim], signal.SIGSTOP)
        for events, end in clients.wait(END_S):
            assert end == "error" and names_the_fault(events[-1]["error"]["message"], victim), (end, events[-1])
        assert time.monotonic() - begin < TIMEOUT_S + 15
        code = job.wait(END_S)
        assert code not in (0, 2, 3, 4) and names_the_fault(job.err, victim), job.err
        assert "the instance has failed" in job.err
        assert any(names_the_fault(text, victim) for text in health.texts_of(503)), health.seen

    def test_a_rank_stopped_while_nobody_asks_fails_the_next_request(self, served):
        job, url, pids = served("tp2", 2)
        os.kill(pids[1], signal.SIGSTOP)
        assert serving.get(url + "/health")[0] == 200
        events, end = serving.stream(url, prompt=[1, 2, 3], max_tokens=5, ignore_eos=True)
        assert end in ("error", "refused"), (events, end)
        assert names_the_fault(events[-1]["error"]["message"], 1, 0), events
        assert job.wait(END_S) != 0

    def test_a_stopped_leader_ends_all(self, served):
        job, url, pids = served("tp2", 2)
        clients = Clients(url, 2)
        clients.wait_until_all_stream()
        os.kill(pids[0], signal.SIGSTOP)
        code = job.wait(END_S)
        assert code not in (0, 2, 3, 4) and names_the_fault(job.err, 0, 1), job.err
        assert all(end != "done" for _, end in clients.wait(5))

    @pytest.mark.parametrize("victim", [0, 1])
    def test_a_killed_rank_ends_all(self, served, victim):
        job, url, pids = served("tp2", 2)
        clients = Clients(url, 2)
        clients.wait_until_all_stream()
        os.kill(pids[victim], signal.SIGKILL)
        code = job.wait(END_S)
        assert code != 0 and re.search(rf"rank {victim}\b.*signal 9", job.err), job.err
        assert all(end != "done" for _, end in clients.wait(5))

    def test_after_a_kill_clients_hear_of_it_where_the_launcher_waits(self, served):
        job, url, pids = served("tp2", 2, launcher_flags=["--mca", "odls_base_sigkill_timeout", "7"])
        clients = Clients(url, 2)
        clients.wait_until_all_stream()
        health = Health(url)
        os.kill(pids[1], signal.SIGKILL)
        for events, end in clients.wait(END_S):
            assert end == "error", (end, events[-1])
        assert job.wait(END_S) != 0
        assert health.texts_of(503)

    def test_an_idle_server_outlives_its_deadline(self, served):
        job, url, _ = served("tp2,pp2", 4, timeout_s=1)
        time.sleep(4)
        assert serving.complete(url, prompt=[1, 2], max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4

    @pytest.mark.parametrize("to_all", [False, True], ids=["leader", "all"])
    def test_sigterm_drains(self, served, to_all):
        job, url, pids = served("tp2,dp2", 4, "--drain-timeout", 60)
        first = threading.Event()
        ended = []
        client = threading.Thread(target=lambda: ended.append(serving.stream(
            url, prompt=[1, 2, 3], max_tokens=800, ignore_eos=True, on_event=first.set)))
        client.start()
        assert first.wait(60)
        for pid in pids if to_all else pids[:1]:
            os.kill(pid, signal.SIGTERM)
        client.join(60)
        assert ended and ended[0][1] == "done", ended
        assert job.wait(END_S) == 0 and "drained" in job.err, job.err

    def test_ctrl_c_ends_all(self, served):
        job, url, _ = served("tp2", 2)
        clients = Clients(url, 2)
        clients.wait_until_all_stream()
        job.process.send_signal(signal.SIGINT)
        assert job.wait(END_S) != 0
        assert all(end != "done" for _, end in clients.wait(5))


@needs_mpi
class TestGenerate:
    @pytest.mark.parametrize("victim, waiting, signal_number", [
        (1, 0, signal.SIGSTOP), (0, 1, signal.SIGSTOP), (1, None, signal.SIGKILL)], ids=["stop", "stop-leader", "kill"])
    def test_ends_in_time(self, sixfold, talkative, tmp_path, victim, waiting, signal_number):
        command = [sixfold.binary, "generate", talkative, "--prompt-tokens", "1,2,3", "--max-tokens", 60000, "--ignore-eos", "-tp", 2,
                   "--comm-timeout", TIMEOUT_S]
        with mpi_job.Job(2, command, tmp_path) as job:
            pids = job.ranks(2)
            job.wait_for(r"(?s).{20}")  # an answer has begun
            os.kill(pids[victim], signal_number)
            code = job.wait(END_S)
            assert code not in (0, 2, 3, 4), job.err
            if waiting is not None:
                assert names_the_fault(job.err, victim, waiting), job.err


class TestThreads:
    @pytest.mark.parametrize("flags", [["-tp", 2], ["--mesh", "tp2,dp2,pp2"]])
    def test_sigterm_lets_answers_end(self, sixfold, talkative, flags):
        with serving.Server(sixfold, talkative, *flags) as server:
            first = threading.Event()
            ended = []
            client = threading.Thread(target=lambda: ended.append(serving.stream(
                server.url, prompt=[1, 2, 3], max_tokens=800, ignore_eos=True, on_event=first.set)))
            client.start()
            assert first.wait(60)
        client.join(60)
        assert ended and ended[0][1] == "done"

    def test_ctrl_c_drains_too(self, sixfold, talkative):
        with serving.Server(sixfold, talkative, "-tp", 2) as server:
            server.process.send_signal(signal.SIGINT)
            server.process.wait(60)

    def test_no_rank_is_a_process_of_its_own(self, sixfold, talkative):
        with serving.Server(sixfold, talkative, "-tp", 4) as server:
            children = subprocess.run(["ps", "--ppid", str(server.process.pid), "-o", "pid="], capture_output=True, text=True).stdout
            assert children.strip() == ""
