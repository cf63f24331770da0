"""One run of a program under mpirun or srun: its ranks as processes of this machine, how it ends, and whether anything is left."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import uuid

MPIRUN = shutil.which("mpirun.openmpi")
MARK = "SIXFOLD_TEST_JOB"


def state_of(pid):
    """R, S, T (stopped), Z (zombie), …; None when there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def _environment_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


class LauncherStuck(AssertionError):
    """All ranks have ended, and mpirun has not: OpenMPI 4.1 now and then waits for itself while it closes its PMIx server."""


class Job:
    """`command` under mpirun with `ranks` processes, or as it is with launcher=[]. Use as a context: what is left of it then
    is killed. Output goes to files, so that no rank ever waits for a reader."""

    def __init__(self, ranks, command, folder, launcher=None, env=None, cwd=None):
        self.under_mpirun = launcher is None
        if launcher is None:
            launcher = [MPIRUN, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", str(ranks)]
        self.mark = f"{MARK}={uuid.uuid4()}".encode()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SIXFOLD_")}
        name, value = self.mark.decode().split("=")
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", name: value} | (env or {})
        folder = pathlib.Path(folder)
        self.out_path, self.err_path = folder / f"{value}.out", folder / f"{value}.err"
        self.seen = set()  # pids
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen([*map(str, launcher), *map(str, command)], stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env=kept, cwd=cwd, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.terminate()  # the launcher may have to take a network down
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                pass
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    def alive(self):
        """Pids of all processes of this run, the launcher's among them."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            if self.mark in _environment_of(pid) and state_of(pid) not in (None, "Z"):
                found.append(pid)
        self.seen |= set(found)
        return found

    def ranks(self, count, timeout=60):
        """[rank]: pid. Waits until all have started."""
        deadline = time.monotonic() + timeout
        while True:
            pids = {}
            for pid in self.alive():
                for entry in _environment_of(pid):
                    if entry.startswith((b"OMPI_COMM_WORLD_RANK=", b"SLURM_PROCID=")):
                        pids[int(entry.split(b"=")[1])] = pid
            if len(pids) == count:
                return [pids[rank] for rank in range(count)]
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err}"
            assert time.monotonic() < deadline, f"ranks {sorted(pids)} of {count} after {timeout} s"
            time.sleep(0.05)

    def wait_for(self, pattern, timeout=120):
        """First match in stdout."""
        deadline = time.monotonic() + timeout
        while True:
            if found := re.search(pattern, self.out):
                return found
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err}"
            assert time.monotonic() < deadline, f"no {pattern} after {timeout} s: {self.out} {self.err}"
            time.sleep(0.05)

    def wait(self, timeout):
        """The exit code. All processes that were seen must be gone with the launcher, no zombie among them."""
        begin = next_look = time.monotonic()
        alone = 0  # looks in a row at a launcher without ranks
        while self.process.poll() is None:
            if self.under_mpirun and time.monotonic() > next_look:
                next_look = time.monotonic() + 1
                alone = alone + 1 if self.alive() == [self.process.pid] else 0
                if alone > 30:
                    raise LauncherStuck(f"no rank is left and the launcher has not ended\n{self.out}\n{self.err}")
            if time.monotonic() - begin > timeout:
                states = {pid: state_of(pid) for pid in self.alive()}
                raise AssertionError(f"not over after {timeout} s: {states}\n{self.out}\n{self.err}")
            time.sleep(0.05)
        code = self.process.returncode
        deadline = time.monotonic() + 5  # the launcher's children may outlive it for a moment
        while True:
            left = {pid: state_of(pid) for pid in self.seen | set(self.alive())}
            left = {pid: state for pid, state in left.items() if state is not None}
            if not left:
                return code
            assert time.monotonic() < deadline, f"left after the end: {left}\n{self.err}"
            time.sleep(0.05)


def run(ranks, command, folder, timeout=180, **kwargs):
    """(exit code, stdout, stderr) of a run that ends by itself. A launcher that does not end when its ranks have gets a second try."""
    for last in (False, True):
        try:
            with Job(ranks, command, folder, **kwargs) as job:
                code = job.wait(timeout)
                return code, job.out, job.err
        except LauncherStuck:
            if last:
                raise
