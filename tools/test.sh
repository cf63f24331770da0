#!/usr/bin/env bash
# All tests: release build with its tests, the binary's own tests (pytest), sanitizers, fuzz targets. The last line counts
# them. SIXFOLD_TEST_STAGES="release asan" runs only those stages; SIXFOLD_FUZZ_SECONDS sets the time of each target.
set -uo pipefail
cd "$(dirname "$0")/.."
stages=${SIXFOLD_TEST_STAGES:-"release python forms asan tsan fuzz"}
fuzz_seconds=${SIXFOLD_FUZZ_SECONDS:-60}
logs=build/test-logs
mkdir -p "$logs"
passed=0 failed=0
failures=()

note() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

one() {  # name, exit code of a check that is a test by itself
  if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); failures+=("$1"); fi
}

build() {  # preset, targets…
  local preset=$1; shift
  local log=$logs/configure-$preset.log
  cmake --preset "$preset" -DBUILD_TESTING="$([ "$preset" = fuzz ] && echo OFF || echo ON)" >"$log" 2>&1 ||
    { tail -n 20 "$log"; return 1; }
  cmake --build --preset "$preset" ${1:+--target "$@"} >"$logs/build-$preset.log" 2>&1 || { grep -E 'error|FAILED' -A 5 "$logs/build-$preset.log" | head -n 60; return 1; }
}

count_ctest() {  # junit file
  python3 - "$1" <<'PY'
import sys, xml.etree.ElementTree as tree
try: suite = tree.parse(sys.argv[1]).getroot()
except Exception: print("0 1"); raise SystemExit
total, bad = int(suite.get("tests", 0)), int(suite.get("failures", 0)) + int(suite.get("errors", 0) or 0)
print(total - bad, bad if total else 1)
PY
}

run_ctest() {  # preset, ctest options…
  local preset=$1; shift
  ctest --test-dir "build/$preset" --output-on-failure --output-junit "$PWD/$logs/ctest-$preset.xml" "$@" ||
    failures+=("ctest $preset")
  read -r good bad < <(count_ctest "$logs/ctest-$preset.xml")
  passed=$((passed + good)) failed=$((failed + bad))
}

stage_release() {
  python3 tools/lint_includes.py; one "include lint" $?
  build release || { one "release build" 1; return; }
  run_ctest release
}

run_pytest() {  # name, pytest options…
  local name=$1; shift
  build/venv/bin/python -m pytest -q --junitxml "$logs/$name.xml" "$@" || failures+=("$name")
  read -r good bad < <(count_pytest "$logs/$name.xml")
  passed=$((passed + good)) failed=$((failed + bad))
}

count_pytest() {  # junit file
  python3 - "$1" <<'PY'
import sys, xml.etree.ElementTree as tree
try: suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
except Exception: print("0 1"); raise SystemExit
total, bad = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors"))
print(total - bad - int(suite.get("skipped")), bad)
PY
}

stage_python() {
  tools/fetch_default_model.sh || { one "default model" 1; return; }
  [ -x build/venv/bin/python ] || python3 -m venv build/venv
  build/venv/bin/pip install -q -r tests/requirements.txt || { one "pip install" 1; return; }
  export SIXFOLD_MODEL SIXFOLD_TEST_SMOLLM2
  SIXFOLD_MODEL=$(ls "$PWD"/build/models/*.gguf | head -n 1) SIXFOLD_TEST_SMOLLM2=$SIXFOLD_MODEL
  SIXFOLD_BIN=$PWD/build/release/sixfold run_pytest pytest-sixfold tests
  # Two checks need a door that the command line does not have: vocabularies given as JSON, and streams of given ids.
  SIXFOLD_BIN=$PWD/build/release/src/text/text_tool run_pytest pytest-text-tool tests/text/test_tokenizers.py \
    -k "gguf_vocabulary or streams"
  unset SIXFOLD_MODEL SIXFOLD_TEST_SMOLLM2
}

# The forms that scripts rely on, where the checker is at hand (it lives outside this repository).
stage_forms() {
  local checker=../shared/tools/check_forms.py model
  if [ ! -f "$checker" ]; then echo "no $checker: forms are covered by tests/cli alone"; return; fi
  model=$(ls build/models/*.gguf | head -n 1)
  python3 "$checker" build/release/sixfold "$model" --parts spine; one "forms, default model" $?
  python3 "$checker" build/release/sixfold tests/golden/llama_gqa --tokenizer "$model" --parts spine; one "forms, HF folder" $?
}

stage_asan() {
  build asan || { one "asan build" 1; return; }
  run_ctest asan -LE slow
}
# What has threads: the team of a rank, the step thread, the server.
stage_tsan() {
  build tsan base_test model_golden_test engine_test gateway_test || { one "tsan build" 1; return; }
  run_ctest tsan -R '^(base|model_golden|engine|gateway)$'
}

fuzz_one() {  # program, corpus
  local binary; binary=$(find build/fuzz -name "$1" -type f | head -n 1)
  mkdir -p "build/fuzz/corpus-$1"
  # Findings go to a scratch corpus; the committed seeds are only read.
  "$binary" -max_total_time="$fuzz_seconds" -timeout=25 -rss_limit_mb=3000 -artifact_prefix="build/fuzz/$1-" \
    "build/fuzz/corpus-$1" "$2" >"$logs/$1.log" 2>&1
  echo $? >"$logs/$1.code"
}

stage_fuzz() {
  build fuzz || { one "fuzz build" 1; return; }
  local programs=()
  while read -r program corpus; do
    programs+=("$program")
    fuzz_one "$program" "$corpus" &
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  done <build/fuzz/fuzzers.txt
  wait
  for program in "${programs[@]}"; do
    local code; code=$(cat "$logs/$program.code")
    echo "$program: $(grep -E '^Done|SUMMARY' "$logs/$program.log" | tail -n 1)"
    [ "$code" -eq 0 ] || tail -n 30 "$logs/$program.log"
    one "$program" "$code"
  done
}

for stage in $stages; do
  note "$stage"
  "stage_$stage"
done
note "done"
for f in "${failures[@]:-}"; do [ -n "$f" ] && echo "failed: $f"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ ${#failures[@]} -eq 0 ] && [ "$passed" -gt 0 ]
