#!/usr/bin/env bash
# Prints "CARGO RUSTC" of a toolchain that can build text-rs (rustc 1.85 or newer); exit 1 when there is none.
set -euo pipefail

new_enough() {  # rustc
  local version
  version=$("$1" --version 2>/dev/null | awk '{ print $2 }') || return 1
  [ "$(printf '%s\n1.85\n' "$version" | sort -V | head -n 1)" = 1.85 ]
}

# Debian's packages cargo-web and rustc-web install under the plain names.
for folder in "$(dirname "$(command -v rustc || echo /usr/bin/rustc)")" /usr/bin; do
  cargo=$folder/cargo rustc=$folder/rustc
  if command -v "$cargo" >/dev/null 2>&1 && command -v "$rustc" >/dev/null 2>&1 && new_enough "$rustc"; then
    echo "$cargo $rustc"
    exit 0
  fi
done
echo "no rustc of 1.85 or newer: apt-get install rustc-web cargo-web" >&2
exit 1
