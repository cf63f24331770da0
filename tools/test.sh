#!/usr/bin/env bash
# All tests: release build with its tests, the binary's own tests (pytest), stable command forms, sanitizers, fuzz targets.
# The last line counts them. SIXFOLD_TEST_STAGES="release asan" runs only those stages; SIXFOLD_FUZZ_SECONDS sets the time of
# each target. The sanitizers' programs are built beside the Python tests, which leave cores idle.
set -uo pipefail
cd "$(dirname "$0")/.."
stages=${SIXFOLD_TEST_STAGES:-"release python forms asan tsan fuzz"}
fuzz_seconds=${SIXFOLD_FUZZ_SECONDS:-60}
logs=build/test-logs
mkdir -p "$logs"
passed=0 failed=0
failures=()

note() {  # stage: prints it with the seconds so far, on the clock and of all cores
  local children
  times >"$logs/times"  # the second line is of processes that have ended; $(times) would ask a new shell
  children=$(tail -n 1 "$logs/times" | tr 'ms' '  ' | awk '{ printf "%d", 60 * $1 + $2 + 60 * $3 + $4 }')
  printf '\n== %s (%s s, %s s of CPU)\n' "$1" "$SECONDS" "$children"
}

one() {  # name, exit code of a check that is a test by itself
  if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); failures+=("$1"); fi
}

configure() {  # preset
  cmake --preset "$1" -DBUILD_TESTING=ON >"$logs/configure-$1.log" 2>&1 || { tail -n 20 "$logs/configure-$1.log"; return 1; }
}

compile() {  # preset, targets…
  local preset=$1 log=$logs/build-$1.log; shift
  cmake --build --preset "$preset" ${1:+--target "$@"} -- -k 0 >"$log" 2>&1 || { grep -E 'error|FAILED' -A 5 "$log" | head -n 60; return 1; }
}

# One build for the tests under address sanitizer and for the fuzz targets.
build_asan() { configure asan && compile asan; }
build_fuzz() { configure asan && compile asan $(cut -d ' ' -f 1 build/asan/fuzzers.txt); }
# What has threads: the team of a rank, ranks that are threads, the step thread, the server.
tsan_tests="base comm moe model_golden engine gateway"
build_tsan() {
  local targets=() name
  configure tsan || return
  for name in $tsan_tests; do
    ninja -C build/tsan -t query "${name}_test" >/dev/null 2>&1 && targets+=("${name}_test")
  done
  compile tsan "${targets[@]}"
}

ahead=  # the process that builds for later stages
build_ahead() {
  (
    renice -n 10 "$BASHPID" >/dev/null
    for stage in asan tsan fuzz; do
      case " $stages " in *" $stage "*) "build_$stage" ;; esac
    done
  ) >"$logs/ahead.log" 2>&1 &
  ahead=$!
}

build_now() {  # stage: what build_ahead has done is not done again; its errors are found again, and shown
  if [ -n "$ahead" ]; then wait "$ahead"; ahead=; fi
  "build_$1"
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
  ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --output-junit "$PWD/$logs/ctest-$preset.xml" "$@" ||
    failures+=("ctest $preset")
  if [ "${CI:-}" = true ] && grep -h '^\[  SKIPPED \] [A-Za-z]' "build/$preset/Testing/Temporary/LastTest.log"; then
    one "ctest $preset: CI=true, no test may be skipped" 1
  fi
  read -r good bad < <(count_ctest "$logs/ctest-$preset.xml")
  passed=$((passed + good)) failed=$((failed + bad))
}

stage_release() {
  python3 tools/lint_includes.py; one "include lint" $?
  { configure release && compile release; } || { one "release build" 1; return; }
  run_ctest release
  run_cargo_test
}

run_cargo_test() {  # the dependencies are those that the build made
  local cargo rustc log=$logs/cargo-test.log good
  read -r cargo rustc < <(tools/find_rust.sh)
  CARGO_TARGET_DIR=$PWD/build/cargo RUSTC=$rustc "$cargo" test --manifest-path text-rs/Cargo.toml --release --locked --lib \
    >"$log" 2>&1 || { tail -n 40 "$log"; one "cargo test" 1; return; }
  good=$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$log")
  passed=$((passed + good))
  echo "cargo test: $good passed"
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

# Waits for the network more than it computes, so it runs beside the release build; once more in its stage, for its errors.
prepare_python() {
  tools/fetch_default_model.sh || return
  [ -x build/venv/bin/python ] || python3 -m venv build/venv || return
  build/venv/bin/pip install -q -r tests/requirements.txt
}

stage_python() {
  if [ -n "$preparing" ]; then wait "$preparing"; preparing=; fi
  prepare_python || { one "packages of the Python tests" 1; return; }
  export SIXFOLD_MODEL SIXFOLD_TEST_SMOLLM2
  SIXFOLD_MODEL=$(ls "$PWD"/build/models/*.gguf | head -n 1) SIXFOLD_TEST_SMOLLM2=$SIXFOLD_MODEL
  SIXFOLD_BIN=$PWD/build/release/sixfold run_pytest pytest-sixfold tests
  unset SIXFOLD_MODEL SIXFOLD_TEST_SMOLLM2
}

# The forms that scripts rely on, where the checker is at hand (it lives outside this repository).
stage_forms() {
  local checker=../shared/tools/check_forms.py model
  if [ ! -f "$checker" ]; then echo "no $checker: forms are covered by tests/cli alone"; return; fi
  model=$(ls build/models/*.gguf | head -n 1)
  python3 "$checker" build/release/sixfold "$model" --parts spine,mesh; one "forms, default model" $?
  python3 "$checker" build/release/sixfold tests/golden/llama_gqa --tokenizer "$model" --parts spine,mesh,context
  one "forms, HF folder" $?
  python3 "$checker" build/release/sixfold models/toy --parts spine,mesh,experts,context; one "forms, toy" $?
  python3 "$checker" build/release/sixfold tests/golden/deepseek_v3 --tokenizer "$model" --parts spine,mesh,experts
  one "forms, DeepSeek-V3" $?
}

stage_asan() {
  build_now asan || { one "asan build" 1; return; }
  run_ctest asan
}

stage_tsan() {
  build_now tsan || { one "tsan build" 1; return; }
  run_ctest tsan -R "^(${tsan_tests// /|})\$"
}

fuzz_one() {  # program, corpus
  local binary; binary=$(find build/asan -name "$1" -type f | head -n 1)
  mkdir -p build/fuzz/"corpus-$1"
  # Findings go to a scratch corpus; the committed seeds are only read.
  "$binary" -max_total_time="$fuzz_seconds" -timeout=25 -rss_limit_mb=3000 -artifact_prefix="build/fuzz/$1-" \
    "build/fuzz/corpus-$1" "$2" >"$logs/$1.log" 2>&1
  echo $? >"$logs/$1.code"
}

stage_fuzz() {
  build_now fuzz || { one "fuzz build" 1; return; }
  local programs=()
  while read -r program corpus; do
    programs+=("$program")
    fuzz_one "$program" "$corpus" &
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  done <build/asan/fuzzers.txt
  wait
  for program in "${programs[@]}"; do
    local code; code=$(cat "$logs/$program.code")
    echo "$program: $(grep -E '^Done|SUMMARY' "$logs/$program.log" | tail -n 1)"
    [ "$code" -eq 0 ] || tail -n 30 "$logs/$program.log"
    one "$program" "$code"
  done
}

preparing=  # the process of prepare_python
case " $stages " in *" release python "*) prepare_python >"$logs/python-packages.log" 2>&1 & preparing=$! ;; esac
for stage in $stages; do
  note "$stage"
  [ "$stage" = python ] && build_ahead
  "stage_$stage"
done
note "done"
for f in "${failures[@]:-}"; do [ -n "$f" ] && echo "failed: $f"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ ${#failures[@]} -eq 0 ] && [ "$passed" -gt 0 ]
