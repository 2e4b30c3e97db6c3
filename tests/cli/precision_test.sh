#!/usr/bin/env bash
# The key `precision`: what is refused where, in one line, and what auto takes. That the numbers are
# close to fp32's is tests/apps/precision_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
run() { # FOLDER PRECISION [ARG...]
  local folder=$1 precision=$2
  shift 2
  "$train" small.json --set precision="$precision" --device cpu --output "$folder" "$@"
}
without_bf16() { STARLING_CPU_ISA=avx2 run "$@"; }
export -f run without_bf16

check "fp16 on an older processor" 2 "fp16 needs a GPU; use fp32" without_bf16 refused fp16
check "bf16 on an older processor" 2 "precision: bf16 needs a processor" without_bf16 refused bf16
verify "nothing is left behind" test ! -e refused
check "auto on an older processor" 0 "on .*, fp32" without_bf16 older auto
verify "the config keeps the user's word" grep -q '"precision": "auto"' older/config.json
verify "the summary says what it was" grep -q '"precision": "fp32"' older/summary.json
check "fp64" 0 "on .*, fp64" run wide fp64

if run probe bf16 --set steps=1 >/dev/null 2>&1; then
  check "auto takes bf16" 0 "on .*, bf16" run best auto
  # auto may mean something else where a run goes on.
  check "auto, stopped" 0 "bf16" run moved auto --set steps=6
  check "auto goes on where it means fp32" 2 "precision: the checkpoint was made in bf16.*add --set precision=bf16" without_bf16 moved auto --resume latest
  check "auto, stopped where it means fp32" 0 "fp32" without_bf16 back auto --set steps=6
  check "and goes on where it means bf16" 2 "precision: the checkpoint was made in fp32.*add --set precision=fp32" run back auto --resume latest
  check "which the remedy allows" 0 "continuing after step 6" run back auto --set precision=fp32 --resume latest
  # Processors with AMX never take these on their own.
  check "attention by pairs of bf16" 0 "rows, 0 wrong" env DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 "$build/bin/test_operations" test --only attention --precision bf16
else
  check "bf16 on this processor" 2 "precision: bf16 needs a processor" run refused bf16
  check "auto falls back" 0 "on .*, fp32" run best auto
fi

check "auto takes the CPU where there is no GPU" 0 "starling .* on .*threads?" "$train" small.json --device auto --set steps=2 --output device
finish
