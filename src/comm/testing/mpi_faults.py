#!/usr/bin/env python3
"""Lets one rank under mpirun go astray and looks how all of it ends.
usage: mpi_faults.py (skip|stop|stop-leader|kill|fail|slow) COMMAND...   COMMAND: mpirun … mpi_ranks, to which the case is added.
Exit 0: the end was as it must be: in time, with the words that name the culprit, with a failure, and with nobody left."""
import os
import pathlib
import re
import subprocess
import sys
import time
import uuid

# What must stand in the output, and within how many seconds it must be over (the time-out is 2 s; starting, and the
# launcher's way of ending stopped processes, take some on a loaded machine).
CASES = {
    "skip": (["all_reduce 16 of tp group 3", "layer 4, step 1", "layer 5, step 1", "first difference"], 40),
    "stop": (["for rank 1 in all_reduce 16 of tp group 3 (layer 4, step 1)", "rank 1 was last seen in", "step 1",
              "made no progress since"], 40),
    "stop-leader": (["for rank 0 in ", "rank 0 was last seen in", "made no progress since"], 40),
    "kill": ([], 40),  # the launcher's own line, which differs from launcher to launcher
    "fail": (["rank 1: no memory for pages"], 40),
    "slow": (["ranks passed"], 60),
}


def processes_with(mark: str):
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if mark.encode() in environment and int(folder.name) != os.getpid():
            found.append(f"{folder.name} ({state})")
    return found


def main():
    case, command = sys.argv[1], sys.argv[2:]
    words, limit = CASES[case]
    mark = f"SIXFOLD_TEST_MARK={uuid.uuid4()}"
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       SIXFOLD_TEST_MARK=mark.split("=")[1])
    arguments = ["stop", "0"] if case == "stop-leader" else [case]
    begin = time.monotonic()
    process = subprocess.Popen(command + arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, text=True)
    problems = []
    try:
        output = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output = process.communicate()[0]
        problems.append(f"not over after {limit} s")
    took = time.monotonic() - begin
    where = re.compile(r" \(host \S+, pid \d+\)")
    problems += [f"'{w}' is missing" for w in words if w not in where.sub("", output)]
    if case.startswith("stop") and not where.search(output):
        problems.append("host and pid of the rank that stands still are missing")
    if (process.returncode == 0) != (case == "slow"):
        problems.append(f"exit code {process.returncode}")
    deadline = time.monotonic() + 5  # the launcher's children may outlive it for a moment
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    problems += [f"process {p} is left" for p in processes_with(mark)]
    print(output)
    print(f"{case}: exit code {process.returncode} after {took:.1f} s;", "; ".join(problems) or "as it must be")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
