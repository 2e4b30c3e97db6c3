#!/usr/bin/env bash
# scripts/gpu_check.sh as far as it goes without a GPU, and docs/gpu-proof.md: complete, and true to the tests it names.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
script=$root/scripts/gpu_check.sh

check "a dry run prints its steps" 0 "^build +330 s at most: cmake --build" "$script" --dry-run out
for word in "^configure " "STARLING_CUDA=ON" "^tests cuda/update. +60 s" "^training, bf16" "^bench against PyTorch" "^compute-sanitizer memcheck, racecheck"; do
  verify "the steps have '$word'" grep -qE -e "$word" "$work/.stdout"
done
verify "a dry run makes nothing" test ! -e out
check "--only leaves steps out" 0 "compute-sanitizer memcheck, racecheck" "$script" --only sanitize --dry-run
verify "the others are gone" bash -c '! grep -qE "PyTorch|^training" "$0"' "$work/.stdout"
check "an unknown part" 2 "unknown part 'benches'; known: build, tests, bench, sanitize" "$script" --only benches
check "an unknown option" 2 "unknown option '--fast'" "$script" --fast
check "a second folder" 2 "two output folders" "$script" a b
check "a bad STARLING_DEPS" 2 "env.sh" env STARLING_DEPS="$work" "$script"

# The whole of it up to the first call of a device, with what is built already. There is no GPU for it, here or on a machine that has one.
mkdir no_gpu && printf '#!/bin/sh\nexit 9\n' >no_gpu/nvidia-smi && chmod +x no_gpu/nvidia-smi
without_gpu() { # BUILD FOLDER, ARGUMENT...
  local folder=$1
  shift
  PATH=$work/no_gpu:$PATH STARLING_BUILD=$folder STARLING_CHECK_BUILT=1 "$script" "$@"
}
export work script
export -f without_gpu
check "STARLING_CHECK_BUILT is 0 or 1" 2 "it is 0 or 1" env STARLING_CHECK_BUILT=yes "$script" --dry-run
if [ -x "$build/bin/test_cuda_device" ]; then
  check "without a GPU: built, tests found, nothing proven" 4 "nothing proven on a device" without_gpu "$build" --only tests found
  report=found/gpu_report.md
  for row in "| device | no GPU |" "| test discovery | passed |" "| test discovery, ctest | passed |" "| tests on a device | not run | 0 | no GPU here |" "| NCCL | "; do
    verify "the report has '$row'" grep -qF -e "$row" "$report"
  done
  rows() { grep -E '^\| `kernels/cuda/' "$1"; }
  verify "the report has every CUDA source file" diff <(rows "$report" | cut -d'|' -f2) <(rows "$root/docs/gpu-proof.md" | cut -d'|' -f2)
  verify "no file is called proven" test "$(rows "$report" | grep -cv '| not run |')" = 0
  verify "the tests were listed" grep -qE '^cuda/update' found/build.log
  verify "by ctest, too" grep -qE 'Test +#[0-9]+: cuda_device' found/build.log
else
  echo "skipped: test_cuda_device is not built here"
fi
mkdir -p broken/bin
check "without test programs" 1 "1 step.* FAILED" without_gpu "$work/broken" --only build missing
verify "the report says which step failed" grep -qE '^\| test discovery \| FAILED: exit status' missing/gpu_report.md

# Every source file has a row, and every row a file.
proof=$root/docs/gpu-proof.md
listed() { grep -oE '^\| `kernels/cuda/[^`]+`' "$proof" | tr -d '|` ' | sort; }
sources() { (cd "$root" && ls kernels/cuda/*.cu kernels/cuda/*.cpp | sort); }
verify "docs/gpu-proof.md lists every CUDA source file once" diff <(listed) <(sources)
for name in $(awk -F'|' '/^\| `kernels\/cuda\// { gsub(/[` ]/, "", $4); gsub(/,/, "\n", $4); print $4 }' "$proof" | sort -u); do
  case $name in -) continue ;; esac
  pattern=${name//\*/.*}
  verify "there is a test called '$name'" bash -c 'grep -rhoE "TEST_CASE\(\"[^\"]+" "$0/tests/cuda" | sed "s/^TEST_CASE(\"//" | grep -qx "$1"' "$root" "$pattern"
done

mkdir -p headers/include && touch headers/include/cudnn_frontend.h
check "get_cudnn_frontend.sh does nothing where the headers are" 0 "^\$" bash -c '"$0" headers && echo' "$root/scripts/get_cudnn_frontend.sh"
check "pack_deps.sh needs a folder" 2 "usage" "$root/scripts/pack_deps.sh"
check "pack_deps.sh wants an empty one" 2 "not empty" "$root/scripts/pack_deps.sh" headers
if command -v python3 >/dev/null; then
  check "gpu_bench.py: an unknown case" 1 "unknown vgg" python3 "$root/scripts/gpu_bench.py" --only vgg
fi
finish
