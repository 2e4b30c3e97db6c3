#!/usr/bin/env bash
# docs/checks.md: complete, and true to the tests it names; and what scripts/gpu_check.sh would run.
# tests/nightly/gpu_check_test.sh runs parts of it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
script=$root/scripts/gpu_check.sh
proof=$root/docs/checks.md
export PYTHONDONTWRITEBYTECODE=1

check "--list has the parts" 0 "^gpt2/starling32, 60 s at most" "$script" --list --out out
verify "tests before figures, the worthiest first" python3 -c '
import sys
names = [line.split(",")[0] for line in open(sys.argv[1]) if " s at most" in line]
at = names.index
assert at("programs start") < at("tests all others") < at("trainings") < at("gpt2/starling32") < at("gpt2/compile") < at("resnet50-bf16/eager") < at("resnet18-bf16/starling"), names
assert len(set(names)) >= 60, names' "$work/.stdout"
verify "every part has a command" bash -c '! grep -E "at a time: *$" "$0"' "$work/.stdout"
verify "and it makes nothing" test ! -e out
check "an unknown part" 2 "no part begins with 'benches'" "$script" --only benches
check "an unknown option" 2 "unrecognized arguments: --fast" "$script" --fast
check "an unknown topic" 2 "^  ranks    several ranks" python3 -B "$root/scripts/gpu" peers
check "an unknown measurement" 2 "invalid choice: 'vgg'" python3 -B "$root/scripts/gpu" measure vgg

# Every source file has a row, and every row a file; every name has a case in the program that runs
# on a GPU, as that program says itself.
listed() { (cd "$root/scripts/gpu" && PYTHONPATH=.. python3 -c 'import check; print("\n".join(source for source, _ in check.proof_rows()))'); }
sources() { # the CUDA backend's, and those of comm/ that exchange between GPUs
  (cd "$root" && find kernels/cuda -name '*.cu' -o -name '*.cpp' && ls comm/nccl/{library,transport,watchdog}.cpp comm/shared/peer_transport.cpp comm/transports/staged.cpp) | sort
}
verify "docs/checks.md lists every source file once" diff <(listed) <(sources)
names() { grep -oE '[`,]cuda/[^`,]+' "$proof" | cut -c2- | sort -u; }
device_cases() { # PROGRAM PATTERN: how many cases of the device, not of the shim
  "$1" --no-colors --list-test-cases --source-file-exclude='*shim_*_test.cpp' --test-case="$2" | grep -c '^cuda/'
}
programs=("$build/bin/test_cuda")
if [ -x "$build/bin/test_cuda_device" ]; then programs+=("$build/bin/test_cuda_device"); fi
for program in "${programs[@]}"; do
  missing=""
  for name in $(names); do
    if [ "$(device_cases "$program" "$name")" = 0 ]; then missing+=" $name"; fi
  done
  verify "$(basename "$program") has a case for every name of docs/checks.md:$missing" test -z "$missing" -a "$(names | wc -l)" -ge 12
done
finish
