#!/usr/bin/env bash
# Makes the corpus of fuzz_shards anew: small shards of PNG, JPEG and raw pixels and their indices,
# as starling-prepare writes them, each behind a byte that tells tests/fuzz/shards.cpp what it is.
# Needs a build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
prepare=$PWD/build/bin/starling-prepare golden=$PWD/tests/golden/pictures corpus=$PWD/tests/fuzz/corpus/shards
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
for class in ant bee; do
  mkdir -p "$work/sources/png/train/$class" "$work/sources/jpeg/train/$class" "$work/sources/jpeg/val/$class"
  cp "$golden/grey2.png" "$work/sources/png/train/$class/1.png"
  cp "$golden/420.jpg" "$work/sources/jpeg/train/$class/1.jpg"
  cp "$golden/grey.jpg" "$work/sources/jpeg/train/$class/2.jpg"
  cp "$golden/444.jpg" "$work/sources/jpeg/val/$class/x.jpg"
done
keep() { # keep NAME SOURCE ARGS...
  local name=$1
  "$prepare" images "$work/sources/$2" "$work/$name" "${@:3}" >/dev/null
  { printf '\1' && cat "$work/$name/train-00000.shard"; } >"$corpus/$name"
  { printf '\3' && cat "$work/$name/train-00000.shard"; } >"$corpus/${name}_mended"
  { printf '\0' && cat "$work/$name/shards.index"; } >"$corpus/${name}_index"
  { printf '\2' && cat "$work/$name/shards.index"; } >"$corpus/${name}_index_mended"
}
rm -f "$corpus"/*
keep png png
keep jpeg jpeg --size 8 --quality 30
keep raw jpeg --size 5 --raw
