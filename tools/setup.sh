#!/usr/bin/env bash
# Installs what is missing of the named sections of tools/apt.txt. usage: tools/setup.sh build model test
set -euo pipefail
cd "$(dirname "$0")/.."

section_packages() {  # section
  awk -v want="[$1]" '/^\[/ { on = ($1 == want); next } on { sub(/#.*/, ""); if (NF) print $1 }' tools/apt.txt
}

missing=()
for section in "$@"; do
  for package in $(section_packages "$section"); do
    case "$package" in
      # A toolchain that came another way serves as well.
      rustc-web | cargo-web) tools/find_rust.sh >/dev/null 2>&1 && continue ;;
      npm) command -v npm >/dev/null 2>&1 && continue ;;
    esac
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: this is no Debian; please install the counterparts of: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "setup: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get failed; its last lines stand above" >&2
  exit 1
fi
