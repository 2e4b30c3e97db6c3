#!/usr/bin/env bash
# scripts/gpu_check.sh rehearsed whole without a GPU, by fakes as slow as the real ones; what its checks find; and docs/gpu-proof.md: complete, and
# true to the tests it names.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
script=$root/scripts/gpu_check.sh
proof=$root/docs/gpu-proof.md
export PYTHONDONTWRITEBYTECODE=1

# ------------------------------------------------------------------------------------------------------------ usage

check "--help names the stages" 0 "^  sanitize  own kernels" "$script" --help
mapfile -t stages < <(sed -nE '/^stages:/,/^$/s/^  ([a-z]+) +[a-zA-Z].*/\1/p' "$work/.stdout")
verify "eight, each with one line" test ${#stages[@]} = 8
check "a dry run" 0 "" "$script" --dry-run --out out
verify "has each of them once, in their order" diff <(printf '%s:\n' "${stages[@]}") <(grep -oE '^[a-z]+:' "$work/.stdout")
verify "and makes nothing" test ! -e out
check "an unknown stage" 2 "unknown stage 'benches'; known: $(printf '%s, ' "${stages[@]}" | sed 's/, $//')" "$script" benches
check "an unknown option" 2 "unrecognized arguments: --fast" "$script" --fast
check "STARLING_CHECK_BUILT is 0 or 1" 2 "it is 0 or 1" env STARLING_CHECK_BUILT=yes "$script" --dry-run
check "a bad STARLING_DEPS" 2 "env.sh" env STARLING_DEPS="$work" "$script" --dry-run build
check "no build to rehearse with" 2 "libstarling_cuda_shim.so is missing" env STARLING_BUILD="$work" "$script" --rehearse --out none build

# ------------------------------------------------------------------------------------------------------------ what is proven by what

# Every source file has a row, and every row a file; every name has a case in the program that runs on a GPU, as that program says itself.
listed() { grep -oE '^\| `(kernels/cuda|comm)/[^`]+`' "$proof" | tr -d '|` ' | sort; }
sources() { # the CUDA backend's, and those of comm/ that exchange between GPUs
  (cd "$root" && find kernels/cuda -name '*.cu' -o -name '*.cpp' && ls comm/nccl/{library,transport,watchdog}.cpp comm/shared/peer_transport.cpp comm/transports/staged.cpp) | sort
}
verify "docs/gpu-proof.md lists every source file once" diff <(listed) <(sources)
names() { awk -F'|' '/^\| `(kernels\/cuda|comm)\// { gsub(/[` ]/, "", $4); gsub(/,/, "\n", $4); print $4 }' "$proof" | grep '^cuda/' | sort -u; }
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
  verify "$(basename "$program") has a case for every name of docs/gpu-proof.md" test -z "$missing" -a "$(names | wc -l)" -ge 12
  verify "and none for one that is not there" test "$(device_cases "$program" 'cuda/nothing*')" = 0
done
if [ ${#programs[@]} = 2 ]; then
  cases() { "$1" --no-colors --list-test-cases --source-file-exclude='*shim_*_test.cpp' | grep '^cuda/' | sort; }
  verify "a rehearsal runs the cases that a GPU runs" diff <(cases "${programs[0]}") <(cases "${programs[1]}")
fi

# ------------------------------------------------------------------------------------------------------------ without a GPU

mkdir no_gpu && printf '#!/bin/sh\nexit 9\n' >no_gpu/nvidia-smi && chmod +x no_gpu/nvidia-smi
without_gpu() { PATH=$work/no_gpu:$PATH STARLING_CHECK_BUILT=1 "$script" "$@"; }
# Where an archive was unpacked, its gpu_env.sh names everything, and nothing is compiled.
mkdir -p unpacked/docs && cp -r "$root/scripts" unpacked && cp "$proof" unpacked/docs && echo 'export STARLING_COMMIT=of_the_archive' >unpacked/gpu_env.sh
ln -s "$build" unpacked/build-gpu
of_archive() { env -u STARLING_BUILD PATH="$work/no_gpu:$PATH" unpacked/scripts/gpu_check.sh "$@"; }
export work script
export -f without_gpu of_archive
if [ -x "$build/bin/test_cuda_device" ]; then
  check "an archive without a GPU: programs start, nothing is proven" 4 "nothing was proven on a device" of_archive --out found build test
  verify "nothing is compiled" bash -c '! grep -qE "^(configure|compile|cudnn)" "$0"' "$work/.stdout"
  for row in "no GPU · commit of_the_archive" "| test cases are listed | passed |" "| test | 0 | 0 | 0 | 0 | no GPU here |" "| Starling | starling " "| peers | – |"; do
    verify "the report has '$row'" grep -qF -e "$row" found/gpu_report.md
  done
  verify "no file is called proven" bash -c '! grep -E "^\| .(kernels/cuda|comm)/" found/gpu_report.md | grep -v "| not run |"'
  verify "and every one stands there" test "$(grep -cE '^\| `(kernels/cuda|comm)/' found/gpu_report.md)" = "$(listed | wc -l)"
else
  echo "skipped: test_cuda_device is not built here"
fi
# Of 480 s the first gets 6 of 10 shares; what it does not need goes to the second.
check "stages share the time of one command, in the order that was asked for" 4 "^=== sanitize: .* (479|480) s at most" without_gpu --seconds 480 --out shared peers sanitize
verify "by their shares" bash -c 'head -1 "$0" | grep -qE "^=== peers: .* 28[78] s at most"' "$work/.stdout"
check "without programs" 1 "starling-train starts +FAILED .*: .*No such file" env STARLING_BUILD="$work/broken" bash -c 'without_gpu --out missing build'
verify "the report says first what failed" bash -c 'sed -n "/^## What failed/,/^## Figures/p" missing/gpu_report.md | grep -q "build: starling-train starts: "'

# ------------------------------------------------------------------------------------------------------------ rehearsals

shim=$(ls "$build"/lib/libstarling_cuda_shim.so 2>/dev/null)
if ! command -v python3 >/dev/null || [ -z "$shim" ]; then
  echo "skipped: no python3, or the shim's plug-in is not built here"
  finish
fi

# A tool that checks kernels: one that is content, one that cannot be used here, one that finds something.
for kind in content refusing finding; do mkdir $kind; done
printf '#!/bin/sh\necho "========= ERROR SUMMARY: 0 errors"\n' >content/compute-sanitizer
printf '#!/bin/sh\necho "========= Error: Device not supported. Please refer to the manual"\nexit 1\n' >refusing/compute-sanitizer
printf '#!/bin/sh\necho "========= Invalid __global__ read of size 4 bytes"\necho "========= ERROR SUMMARY: 1 error"\nexit 99\n' >finding/compute-sanitizer
chmod +x */compute-sanitizer
rehearse() { STARLING_BUILD=$build timeout 250 "$script" --rehearse "$@"; }
export build
export -f rehearse
checked() { PATH=$work/$1:$PATH rehearse --out "$1.out" sanitize; }
export -f checked
check "kernels that a tool has nothing against" 0 "^6 passed, 0 FAILED" checked content
check "a tool that refuses the device is no failure of ours" 0 "^memcheck, cuda/update. +skipped .*cannot be used on this machine: Device not supported" checked refusing
check "what it finds is one" 1 "^memcheck, cuda/update. +FAILED .*exit status 99: .*Invalid __global__ read" checked finding

# What a command that is killed leaves: the report as it was, the logs until then, and no process.
of_rehearsal() { grep -lzx "STARLING_KILLED=$work" /proc/[0-9]*/environ 2>/dev/null | wc -l; }
killed() { # SIGNAL FOLDER: of a rehearsal whose first steps have ended, while others run
  STARLING_KILLED=$work TMPDIR=$work STARLING_BUILD=$build STARLING_SHIM_PLAN_MS=60000 "$script" --rehearse --out "$2" build test >"$2.log" 2>&1 &
  local process=$! i
  for ((i = 0; i < 600; ++i)); do
    if grep -q '| tests cuda/.* | passed |' "$2/gpu_report.md" 2>/dev/null && grep -q '| running |' "$2/gpu_report.md"; then break; fi
    sleep 0.1
  done
  kill "-$1" $process
  wait $process 2>/dev/null
  for ((i = 0; i < 100; ++i)); do
    if [ "$(of_rehearsal)" = 0 ]; then break; fi
    sleep 0.1
  done
}
left_behind() { # FOLDER
  verify "three files, or a fourth that was on its way" test "$(ls -A "$1" | grep -cv '\.new$')" = 3
  verify "and no process" test "$(of_rehearsal)" = 0
  verify "a report that says what passed" grep -qE '^\| tests cuda/.* \| passed \|' "$1/gpu_report.md"
  verify "an archive of the logs" bash -c 'tar -xOf "$0/gpu_check.tar" --wildcards "test/*tests-cuda*.log" | grep -q "Status: SUCCESS"' "$1"
}
killed KILL killed
left_behind killed
verify "what it was at, too" grep -qE '^\| test \| [0-9]+ \| 0 \| [0-9]+ \| [0-9]+ \| ENDED EARLY, in the midst of: .*tests cuda/operations' killed/gpu_report.md
verify "and the stage before" grep -qE '^\| first call of the device \| passed \|' killed/gpu_report.md
killed TERM stopped
left_behind stopped
verify "ended by a signal it says so" grep -qE '^\| tests cuda/operations.* \| FAILED \| [0-9]+ \| ended from outside \|' stopped/gpu_report.md

# Every stage ends in its time, though plans take 0.65 s and processes that share the device 5 ms a turn.
stage_ended() { # STAGE: all that it tried has ended, with no limit in the way
  python3 - whole/gpu_check.json "$1" <<'END_OF_PYTHON'
import json, sys
record = json.load(open(sys.argv[1]))["stages"][sys.argv[2]]
assert record["ended"] and record["steps"], record
for step in record["steps"]:
    assert step["verdict"] in ("passed", "skipped"), step
assert not [row for row in record["rows"] if row[1] == "**FAIL**"], record["rows"]
assert record["seconds"] < record["limit"], (record["seconds"], record["limit"])
END_OF_PYTHON
}
rehearsed=() # all but the one whose tool is checked above
for stage in "${stages[@]}"; do
  [ "$stage" = sanitize ] || rehearsed+=("$stage")
done
for stage in "${rehearsed[@]}"; do
  begin=$SECONDS
  rehearse --out whole $stage >"$stage.log" 2>&1 || failed "rehearsal of $stage: $(grep -E 'FAILED|error' "$stage.log" | head -3)"
  echo "        $stage: $((SECONDS - begin)) s"
  verify "the stage $stage ends in time" stage_ended $stage
done
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
