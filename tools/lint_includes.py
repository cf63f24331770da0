#!/usr/bin/env python3
"""Compares every #include of src/ with the order of modules: a module may include itself and those before it.
usage: lint_includes.py [SRC]   Prints each violation; exit 1 when there is one."""
import pathlib
import re
import sys

ORDER = ["base", "trace", "tensor", "kernels", "mesh", "comm", "text", "weights", "moe", "kv", "model", "spec", "sched",
         "engine", "plan", "bench", "gateway", "apps"]
# Narrower than the order: what a module may see of those before it.
ONLY = {"sched": {"base", "kv", "sched"}, "text": {"base", "text"}, "weights": {"base", "tensor", "kernels", "weights"}}
# Headers of third parties that belong in .cc files of these modules alone.
HEAVY = {"mpi.h": {"comm"}, "ucp/": {"kv"}, "nlohmann/": {"gateway", "bench", "apps", "text", "weights", "model", "mesh", "trace"},
         "boost/": {"gateway"}, "toml++/": {"apps", "mesh"}, "CLI/": {"apps"}, "prometheus/": {"gateway"},
         "simdjson": {"weights"}, "spdlog/": {"base", "engine", "gateway", "apps"}}


def violations(source: pathlib.Path):
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        module = path.relative_to(source).parts[0]
        if module not in ORDER:
            yield f"{path}: module '{module}' is not in the order of tools/lint_includes.py"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
            if found is None:
                continue
            yield from check(path, number, module, found.group(1))


def check(path, number, module, included):
    top = included.split("/")[0]
    if "/" in included and top in ORDER:
        if ORDER.index(top) > ORDER.index(module):
            yield f"{path}:{number}: {module} may not include {included}: {top} comes later in the order"
        elif module in ONLY and top not in ONLY[module] and not path.name.endswith("_test.cc"):
            yield f"{path}:{number}: {module} sees only {', '.join(sorted(ONLY[module]))}, not {included}"
    for prefix, modules in HEAVY.items():
        if not included.startswith(prefix):
            continue
        if module not in modules:
            yield f"{path}:{number}: {included} belongs in {', '.join(sorted(modules))}"
        elif path.suffix == ".h" and not included.endswith("_fwd.hpp"):
            yield f"{path}:{number}: {included} costs compile time: include it in a .cc file"


if __name__ == "__main__":
    found = list(violations(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src")))
    print("\n".join(found) if found else "includes follow the order of modules")
    sys.exit(bool(found))
