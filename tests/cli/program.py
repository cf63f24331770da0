"""The program under test: one run of it, where the golden models lie, limits of memory."""
import json
import os
import pathlib
import resource
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
GIB = 1 << 30


def limited(path, extra=GIB):
    """For preexec: at most the file's mapping and 1 GiB of address space."""
    limit = path.stat().st_size + extra
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Answer:
    """What one run of the program gave."""

    def __init__(self, process):
        self.code = process.returncode
        self.bytes = process.stdout
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode(errors="replace")

    def json(self):
        assert self.code == 0, f"exit {self.code}: {self.err}"
        return json.loads(self.bytes.decode("utf-8"))


def under_test():
    """The program that SIXFOLD_BIN names (default: build/release/sixfold)."""
    binary = pathlib.Path(os.environ.get("SIXFOLD_BIN", ROOT / "build/release/sixfold")).resolve()
    assert binary.exists(), f"{binary} is not built"
    return Program(str(binary))


def word(argument):
    """An argument as subprocess takes it; bytes need not be UTF-8."""
    return argument if isinstance(argument, bytes) else str(argument)


class Program:
    def __init__(self, binary):
        self.binary = binary

    def environment(self, **extra):
        """Ours without any setting of the program, so that tests say all that counts."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SIXFOLD_")}
        return kept | extra

    def __call__(self, *arguments, stdin=b"", env=None, cwd=None, preexec=None, timeout=300):
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        return Answer(subprocess.run([self.binary, *map(word, arguments)], input=stdin, capture_output=True,
                                     env=self.environment(**(env or {})), cwd=cwd, preexec_fn=preexec, timeout=timeout))

    def start(self, *arguments, **kwargs):
        return subprocess.Popen([self.binary, *map(str, arguments)], env=self.environment(), **kwargs)
