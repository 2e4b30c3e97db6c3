#!/usr/bin/env bash
# scripts/gpu_check.sh rehearsed whole without a GPU, stage by stage, by fakes as slow as the real
# ones; and what its checks of kernels find.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
script=$root/scripts/gpu_check.sh
export PYTHONDONTWRITEBYTECODE=1
[ -e "$build/lib/libstarling_cuda_shim.so" ] || { echo "skipped: the shim's plug-in is not built here" && exit 77; }
mapfile -t stages < <("$script" --help | sed -nE '/^stages:/,/^$/s/^  ([a-z]+) +[a-zA-Z].*/\1/p')

export work
# A tool that checks kernels: one that is content, one that cannot be used here, one that finds
# something.
for kind in content refusing finding; do mkdir $kind; done
printf '#!/bin/sh\necho "========= ERROR SUMMARY: 0 errors"\n' >content/compute-sanitizer
printf '#!/bin/sh\necho "========= Error: Device not supported. Please refer to the manual"\nexit 1\n' >refusing/compute-sanitizer
printf '#!/bin/sh\necho "========= Invalid __global__ read of size 4 bytes"\necho "========= ERROR SUMMARY: 1 error"\nexit 99\n' >finding/compute-sanitizer
chmod +x */compute-sanitizer
rehearse() { STARLING_BUILD=$build timeout 250 "$script" --rehearse "$@"; }
export build script
export -f rehearse
checked() { PATH=$work/$1:$PATH rehearse --out "$1.out" sanitize; }
export -f checked
check "kernels that a tool has nothing against" 0 "^6 passed, 0 FAILED" checked content
check "a tool that refuses the device is no failure of ours" 0 "^memcheck, cuda/update. +skipped .*cannot be used on this machine: Device not supported" checked refusing
check "what it finds is one" 1 "^memcheck, cuda/update. +FAILED .*exit status 99: .*Invalid __global__ read" checked finding

# Every stage ends in its time, though processes that share the device take 5 ms a turn.
rehearsed=() # all but the one whose tool is checked above
for stage in "${stages[@]}"; do
  [ "$stage" = sanitize ] || rehearsed+=("$stage")
done
for stage in "${rehearsed[@]}"; do
  begin=$SECONDS
  rehearse --out whole $stage >"$stage.log" 2>&1 || failed "rehearsal of $stage: $(grep -E 'FAILED|error' "$stage.log" | head -3)"
  echo "        $stage: $((SECONDS - begin)) s"
done
verify "every stage ends in time" in_time whole "${rehearsed[@]}"
report=whole/gpu_report.md
verify "the stages are in one report" diff <(printf '%s\n' "${rehearsed[@]}") <(sed -nE 's/^## Stage ([a-z]+): .*/\1/p' $report)
verify "which says what it is" grep -qE '^# GPU check \(rehearsal\): [0-9]+ passed, 0 failed, ' $report
verify "it is three files" test "$(ls -A whole | sort | tr '\n' ' ')" = "gpu_check.json gpu_check.tar gpu_report.md "
verify "of every stage's logs" diff <(printf '%s\n' "${rehearsed[@]}" | sort) <(tar -tf whole/gpu_check.tar | cut -d/ -f1 | sort -u)
verify "and timelines" bash -c 'tar -tf whole/gpu_check.tar | grep -q "graphs/timelines/trace-graphs-fp16-1.json"'
verify "every file that has tests is proven, but for NCCL's" test "$(grep -E '^\| `(kernels/cuda|comm)/' $report | grep -vE '\| pass \||`-`|`ranks:nccl`' | wc -l)" = 0
for row in "| training, mlp, fp16 | pass |" "| 2 ranks, complete, staged | pass |" "| overflow, staged | pass | rank 1 takes the mix" "| lost, staged, SIGSTOP | pass | exit status 3" \
  "| trace, staged | pass |" "| 4 ranks, ring, direct, graphs | pass |" "| lost, direct, SIGKILL | pass |" "| graphs, 1 rank, fp16 | pass |" "| graphs, 2 ranks, direct, bf16 | pass |" \
  "| skipped | this build has no NCCL |" "fused update with mixing, adamw" "exposed exchange | ≤ 3 % | predicted" "host time of a replayed step | ≤ 50 µs |"; do
  verify "the report has '$row'" grep -qF -e "$row" $report
done
python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is not None)' &&
  verify "PyTorch's rows say that it is not here" grep -qF "(no PyTorch here that sees a GPU)" $report
check "folders of several machines become one" 0 "report: " "$script" --merge whole content.out --out merged
verify "with the stages of both" test "$(grep -cE '^## Stage ' merged/gpu_report.md)" = ${#stages[@]}
check "a stage without time says so" 1 "tests cuda/.* not run .*: no time was left" rehearse --out short --seconds 8 test
finish
