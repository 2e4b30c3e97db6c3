#!/usr/bin/env bash
# ctest: longer at night
# Runs the commands that README.md and docs/*.md show. A line before each
# ```sh block says what is to be done with it:
#   <!-- test: run -->            run it in a scratch folder that looks like the repository's root
#   <!-- test: night -->          the same at night alone (long; other tests do it too); exit status
#                                 77 is a skip: this machine cannot
#   <!-- test: skip REASON -->    do not (network, long, another machine)
# A ```sh block without such a line fails.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for entry in "$root"/*; do
  case $(basename "$entry") in runs | build*) ;; *) ln -s "$entry" . ;; esac
done
ln -s "$build" build
export STARLING_BUILD=$build STARLING_SKIP_SETUP=1 NETLAB_NAME=docs$$
trap '"$root/scripts/netlab/netlab" down >/dev/null 2>&1; rm -rf "$work"' EXIT

for file in "$root"/README.md "$root"/CONTRIBUTING.md "$root"/docs/*.md; do
  [ -f "$file" ] || continue
  # One file per block: NUMBER-LINE-MODE.
  rm -rf .blocks && mkdir .blocks
  awk '/^<!-- test: / { mode = $3; next }
       /^```sh$/ { n++; name = sprintf(".blocks/%03d-%d-%s", n, NR, mode == "" ? "unmarked" : mode); printf "" > name; inside = 1; next }
       /^```/ { inside = 0; mode = ""; next }
       inside { print > name }
       !inside && NF { mode = "" }' "$file"
  for block in .blocks/*; do
    [ -f "$block" ] || continue
    line=$(basename "$block" | cut -d- -f2)
    case $block in
      *-run) check "$(basename "$file") line $line: $(head -1 "$block")" 0 "" bash -eu "$block" ;;
      *-night) nightly && check "$(basename "$file") line $line: $(head -1 "$block")" "0|77" "" bash -eu "$block" ;;
      *-skip) echo "skipped $(basename "$file") line $line" ;;
      *) verify "$(basename "$file") line $line: the block is marked <!-- test: run -->, try or skip REASON" false ;;
    esac
  done
done
finish
