#!/usr/bin/env python3
"""Puts deliberate faults into a copy of the source, one at a time, and says which of them the tests do not notice.

  tools/mutate.py                     all faults of tools/mutations.toml
  tools/mutate.py --changed origin/main   those of the modules that differ from a commit
  tools/mutate.py --module sched --module kv
  tools/mutate.py --name sched-victim --verbose

A fault is one replacement of text in one file, with the tests that should notice it: names of ctest ("sched"), or
"pytest FILE [-k EXPRESSION]". The copy is build/mutants, with a build folder of its own, so that a second run compiles
little. Each fault is killed (a test failed, crashed or hung, or the compiler refused it), or it lived. Exit code 1 when fewer than 95 %
were killed, 2 when a fault does not fit the source or the tests fail without any fault."""
import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
SOURCE, BUILD = FOLDER, FOLDER / "build" / "release"
TEST_SECONDS = 600  # a fault may make a test hang


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)


def must(command, **options):
    done = run(command, **options)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def copy_source():
    """Tracked files as they are in the working tree; times are kept, so that what is unchanged is not compiled again."""
    SOURCE.mkdir(parents=True, exist_ok=True)
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout.split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for path in [p for p in SOURCE.rglob("*") if p.is_file()]:
        relative = path.relative_to(SOURCE)
        if str(relative) not in wanted and relative.parts[0] != "build":
            path.unlink()
    for name in wanted:
        source, target = ROOT / name, SOURCE / name
        content = source.read_bytes()
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(source.stat().st_mode)


def configure():
    if (BUILD / "build.ninja").is_file():
        return
    must(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=ON",
          "-DSIXFOLD_PRECOMPILE_TESTS=ON"])


def targets_of(tests):
    return sorted({"sixfold" if test.startswith("pytest ") else test + "_test" for test in tests})


def build(tests):
    return run(["ninja", "-C", BUILD, *targets_of(tests)])


def environment():
    found = {**os.environ, "GTEST_FAIL_FAST": "1", "SIXFOLD_BIN": str(BUILD / "src" / "apps" / "sixfold")}
    for candidate in [BUILD / "sixfold", *BUILD.rglob("sixfold")]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            found["SIXFOLD_BIN"] = str(candidate)
            break
    models = sorted((ROOT / "build" / "models").glob("*.gguf"))
    if models:
        found.setdefault("SIXFOLD_MODEL", str(models[0]))
        found.setdefault("SIXFOLD_TEST_SMOLLM2", str(models[0]))
    return found


def run_test(test):
    """None when the test passes, else how it failed."""
    try:
        if test.startswith("pytest "):
            python = ROOT / "build" / "venv" / "bin" / "python"
            command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(test)[1:]]
            done = run(command, cwd=SOURCE, env=environment(), timeout=TEST_SECONDS)
        else:
            program = next(BUILD.rglob(test + "_test"))
            done = run([program], cwd=SOURCE, env=environment(), timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{test} hung"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if "FAILED" in line or "CHECK" in line or line.startswith("E ")]
    return f"{test}: {lines[0].strip()[:100]}" if lines else f"{test} ended with {done.returncode}"


def apply(fault):
    path = SOURCE / fault["file"]
    text = path.read_text() if path.is_file() else ""
    if text.count(fault["find"]) != 1:
        return None, f"its text occurs {text.count(fault['find'])} times in {fault['file']}; it must occur once"
    path.write_text(text.replace(fault["find"], fault["replace"]))
    return text, None


def try_fault(fault):
    """(how it ended, why): killed, lived, or misfit."""
    text, misfit = apply(fault)
    if misfit:
        return "misfit", misfit
    try:
        built = build(fault["tests"])
        if built.returncode != 0:
            return "killed", "the compiler refuses it"
        for test in fault["tests"]:
            failure = run_test(test)
            if failure:
                return "killed", failure
        return "lived", "no test noticed"
    finally:
        (SOURCE / fault["file"]).write_text(text)


def modules_changed(base):
    names = must(["git", "diff", "--name-only", base], cwd=ROOT).split()
    return {name.split("/")[1] if name.startswith("src/") else name.split("/")[0] for name in names}


def module_of(fault):
    parts = fault["file"].split("/")
    return parts[1] if parts[0] == "src" else parts[0]


def chosen(arguments):
    faults = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text())["fault"]
    modules = set(arguments.module or []) | (modules_changed(arguments.changed) if arguments.changed else set())
    if arguments.module or arguments.changed:
        faults = [fault for fault in faults if module_of(fault) in modules]
    if arguments.name:
        faults = [fault for fault in faults if fault["name"] in arguments.name]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", help="only faults in this folder of src")
    parser.add_argument("--changed", metavar="COMMIT", help="only faults in modules that differ from COMMIT")
    parser.add_argument("--name", action="append", help="only this fault")
    parser.add_argument("--list", action="store_true", help="print the faults and do nothing")
    arguments = parser.parse_args()
    faults = chosen(arguments)
    if arguments.list or not faults:
        print("\n".join(f"{fault['name']:<34} {fault['file']}" for fault in faults) or "no fault is chosen")
        return 0
    copy_source()
    configure()
    tests = sorted({test for fault in faults for test in fault["tests"]})
    print(f"{len(faults)} faults; building {' '.join(targets_of(tests))} without any", flush=True)
    built = build(tests)
    if built.returncode != 0:
        sys.exit(built.stdout[-4000:])
    for test in tests:
        failure = run_test(test)
        if failure:
            print(f"fails without a fault: {failure}")
            return 2
    begin, ended = time.monotonic(), []
    for number, fault in enumerate(faults, 1):
        how, why = try_fault(fault)
        ended.append((fault, how))
        print(f"{number:>3}/{len(faults)} {time.monotonic() - begin:>6.0f} s  {how:<7} {fault['name']:<34} {why}", flush=True)
    build(tests)  # leaves a build without a fault behind
    lived = [fault for fault, how in ended if how == "lived"]
    misfits = [fault for fault, how in ended if how == "misfit"]
    killed = len(ended) - len(lived) - len(misfits)
    for fault in lived:
        print(f"lived: {fault['name']}: {fault['file']}: {fault['find'].strip()[:60]!r} -> {fault['replace'].strip()[:60]!r}")
    print(f"{killed} of {len(ended)} killed, {len(lived)} lived, {len(misfits)} do not fit the source")
    return 2 if misfits else 0 if killed >= 0.95 * len(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
