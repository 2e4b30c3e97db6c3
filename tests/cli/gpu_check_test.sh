#!/usr/bin/env bash
# docs/checks.md: complete, and true to the tests it names. The commands of scripts/gpu_lease.sh
# rehearsed whole without a GPU: their time, what they leave where they are killed, and what they
# say of a step that fails. tests/nightly/gpu_check_test.sh has all stages, at a GPU's pace.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
script=$root/scripts/gpu_check.sh
proof=$root/docs/checks.md
export PYTHONDONTWRITEBYTECODE=1

# -------------------------------------------------------------------------------------------- usage

check "--help names the stages" 0 "^  sanitize  own kernels" "$script" --help
mapfile -t stages < <(sed -nE '/^stages:/,/^$/s/^  ([a-z]+) +[a-zA-Z].*/\1/p' "$work/.stdout")
verify "eight, each with one line" test ${#stages[@]} = 8
check "a dry run" 0 "" "$script" --dry-run --out out
verify "has each of them once, in their order" diff <(printf '%s:\n' "${stages[@]}") <(grep -oE '^[a-z]+:' "$work/.stdout")
verify "and makes nothing" test ! -e out
check "an unknown stage" 2 "unknown stage 'benches'; known: $(printf '%s, ' "${stages[@]}" | sed 's/, $//')" "$script" benches
check "an unknown option" 2 "unrecognized arguments: --fast" "$script" --fast
check "an unknown topic" 2 "^  ranks    several ranks" python3 -B "$root/scripts/gpu" peers
check "STARLING_CHECK_BUILT is 0 or 1" 2 "it is 0 or 1" env STARLING_CHECK_BUILT=yes "$script" --dry-run
check "no build to rehearse with" 2 "libstarling_cuda_shim.so is missing" env STARLING_BUILD="$work" "$script" --rehearse --out none build

# --------------------------------------------------------------------------- what is proven by what

# Every source file has a row, and every row a file; every name has a case in the program that runs
# on a GPU, as that program says itself.
listed() { # a row may have several: a/{b,c}.cu
  local cell
  while read -r cell; do eval "printf '%s\n' $cell"; done < <(grep -oE '^\| `(kernels/cuda|comm)/[^`]+`' "$proof" | tr -d '|` ') | sort
}
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
  verify "and none for one that is not there" test "$(device_cases "$program" 'cuda/nothing*')" = 0
done
if [ ${#programs[@]} = 2 ]; then
  cases() { "$1" --no-colors --list-test-cases --source-file-exclude='*shim_*_test.cpp' | grep '^cuda/' | sort; }
  verify "a rehearsal runs the cases that a GPU runs" diff <(cases "${programs[0]}") <(cases "${programs[1]}")
fi

# ------------------------------------------------------------------------------------ without a GPU

mkdir no_gpu && printf '#!/bin/sh\nexit 9\n' >no_gpu/nvidia-smi && chmod +x no_gpu/nvidia-smi
without_gpu() { PATH=$work/no_gpu:$PATH CUDA_VISIBLE_DEVICES= STARLING_CHECK_BUILT=1 "$script" "$@"; }
# Where an archive was unpacked, its gpu_env.sh names everything, and nothing is compiled.
mkdir -p starling-gpu/docs && cp -r "$root/scripts" starling-gpu && cp "$proof" starling-gpu/docs && echo 'export STARLING_COMMIT=of_the_archive' >starling-gpu/gpu_env.sh
ln -s "$build" starling-gpu/build-gpu
mkdir build-gpu && tar -cJf build-gpu/starling-gpu.tar.xz starling-gpu
lease() { (PATH=$work/no_gpu:$PATH CUDA_VISIBLE_DEVICES= OUT=$work/$1 bash -c "$("$root/scripts/gpu_lease.sh" "$2" 2>/dev/null) ${*:3}"); }
export work script root build
export -f without_gpu lease
for number in 1 2; do
  check "the command of lease $number" 0 "gpu_check.sh --lease $number --out " "$root/scripts/gpu_lease.sh" $number
  verify "has at most 2,000 characters" test "$(wc -m <"$work/.stdout")" -le 2000
done
check "another one" 2 "takes one of 1, 2" "$root/scripts/gpu_lease.sh" 3
check "its archive is missing" 0 "hint: build-gpu/starling-gpu.tar.xz is missing" starling-gpu/scripts/gpu_lease.sh 1
verify "the time of 15 minutes holds them" python3 -B -c '
import sys
sys.path.insert(0, sys.argv[1])
from lease import ALL, COMMAND, LEASES, START, seconds
from stages import STAGES
assert (ALL, COMMAND, START) == (900, 600, 120)
assert START + seconds(1) + seconds(2) <= ALL
assert all(seconds(number) <= COMMAND for number in LEASES)
assert all(name in {stage.name for stage in STAGES} for limits in LEASES.values() for name, _ in limits)
' "$root/scripts/gpu"
if [ ${#programs[@]} = 2 ]; then
  check "an archive without a GPU: programs start, nothing is proven" 4 "nothing was proven on a device" env -u STARLING_BUILD bash -c 'lease found 1'
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
check "stages share the time of one command, in the order that was asked for" 4 "^=== sanitize: .* 4(79|80) s at most" without_gpu --seconds 480 --out shared peers sanitize
verify "by their shares" bash -c 'head -1 "$0" | grep -qE "^=== peers: .* 28[78] s at most"' "$work/.stdout"
check "without programs" 1 "starling-train starts +FAILED .*: .*No such file" env STARLING_BUILD="$work/broken" bash -c 'without_gpu --out missing build'
verify "the report says first what failed" bash -c 'sed -n "/^## What failed/,/^## Figures/p" missing/gpu_report.md | grep -q "build: starling-train starts: "'

# -------------------------------------------------------------------------------- leases, rehearsed

if [ ! -e "$build/lib/libstarling_cuda_shim.so" ]; then
  echo "skipped: the shim's plug-in is not built here"
  finish
fi
export STARLING_BUILD=$build STARLING_SHIM_SLICE_MS=0
check "lease 1" 0 " passed, 0 FAILED" lease one 1 --rehearse
verify "its stages end in time" in_time one build test train bench
for row in "| tests cuda/fill* | passed |" "| training, mlp, fp16 | pass |" "fused update with mixing, adamw, 25.6 M parameters" "ResNet-50, batch 256, bf16 | share of the floor"; do
  verify "the report has '$row'" grep -qF -e "$row" one/gpu_report.md
done
verify "PyTorch's are left to the second" bash -c '! grep -q "skipped (no PyTorch" one/gpu_report.md'
check "lease 2" 0 "^  graphs, 1 rank, fp16 \| pass \| every tensor" lease two 2 --rehearse
verify "its stages end in time" in_time two bench graphs peers ranks
for row in "CIFAR ResNet-20, batch 128, bf16, with uploads and augmentation | against its own steps without graphs |" "host time of a replayed step | ≤ 50 µs |" \
  "| 2 ranks, one-peer-exp, direct, graphs | pass |" "| agree, 2 ranks, over NCCL | skipped | this build has no NCCL |"; do
  verify "the report has '$row'" grep -qF -e "$row" two/gpu_report.md
done
verify "nothing else" bash -c '! grep -qE "4 ranks|lost|overflow|ring|ResNet-18|2 ranks, one-peer-exp, staged" two/gpu_report.md'
# What a command that is killed leaves: the report as it was, the figures until then, and no
# process.
of_rehearsal() { grep -lzx "STARLING_KILLED=$work" /proc/[0-9]*/environ 2>/dev/null | wc -l; }
killed() { # SIGNAL FOLDER
  STARLING_KILLED=$work TMPDIR=$work setsid bash -c "lease $2 2 --rehearse" >"$2.log" 2>&1 &
  local process=$! i
  for ((i = 0; i < 400; ++i)); do
    if grep -q 'share of the floor' "$2/gpu_report.md" 2>/dev/null; then break; fi
    sleep 0.05
  done
  kill "-$1" -- -$process
  wait $process 2>/dev/null
  for ((i = 0; i < 100; ++i)); do
    if [ "$(of_rehearsal)" = 0 ]; then break; fi
    sleep 0.1
  done
  verify "killed by $1: the figures until then" grep -qE '^\| rehearsed on an MLP: ResNet-50, batch 256, bf16 \| share of the floor \| [0-9.]+ ' "$2/gpu_report.md"
  verify "no process stays" test "$(of_rehearsal)" = 0
  verify "three files, or a fourth that was on its way" test "$(ls -A "$2" | grep -cv '\.new$')" = 3
  verify "the measurements by themselves" bash -c 'tar -xOf "$0/gpu_check.tar" bench/goals.json | grep -q images_per_second' "$2"
}
killed KILL killed
verify "what it was at, too" grep -qE '^\| bench \| .* \| ENDED EARLY, in the midst of: measurements' killed/gpu_report.md
killed TERM stopped
verify "ended by a signal it says so" grep -qE '^\| measurements \| FAILED \| [0-9]+ \| ended from outside \|' stopped/gpu_report.md

# What fails is run again the plain way, and under memcheck, where there is time for it; and a
# device that gives no answer ends all of it.
mkdir -p failing/bin tools && ln -s "$build/lib" failing/lib
for program in starling-train starling-topo starling-bench; do ln -s "$build/bin/$program" failing/bin; done
printf '#!/bin/bash\ncase "$*" in *--list*) ;; *cuda/fill*) if [ "$STARLING_FORK" != 0 ]; then echo "TEST CASE: cuda/fill: one"; echo "x.cpp:1: ERROR: CHECK( differs ) is NOT correct!"; exit 1; fi ;; esac\nexec "%s" "$@"\n' "$build/bin/test_cuda" >failing/bin/test_cuda
printf '#!/bin/sh\necho "========= Invalid __global__ read of size 4 bytes"\necho "========= ERROR SUMMARY: 1 error"\nexit 99\n' >tools/compute-sanitizer
chmod +x failing/bin/test_cuda tools/compute-sanitizer
failing() { PATH=$work/tools:$PATH STARLING_BUILD=$work/failing "$script" --rehearse "$@"; }
export -f failing
check "a group that fails" 1 "^tests cuda/fill. +FAILED .*: exit status 1: cuda/fill: one: ERROR: CHECK\( differs \)" failing --lease 1 --out failed
verify "is run again the plain way" grep -qE '^\| tests cuda/fill\*, again the plain way \| passed \|' failed/gpu_report.md
verify "and under memcheck" grep -qE '^\| tests cuda/fill\*, memcheck \| FAILED \| .* exit status 99: .*Invalid __global__ read' failed/gpu_report.md
check "not where 60 s are not left" 1 "^tests cuda/fill. +FAILED" failing --lease 1 --seconds 58 --out hurried
verify "so it has no such stage" bash -c '! grep -q diagnose hurried/gpu_report.md'
rm failing/bin/starling-bench
printf '#!/bin/sh\nif [ "$1" = gpu-update ]; then exit 3; fi\nexec "%s" "$@"\n' "$build/bin/starling-bench" >failing/bin/starling-bench && chmod +x failing/bin/starling-bench
check "a device that gives no answer" 1 "^STOP: the device gave no answer" failing --lease 1 --out dead
verify "nothing else was tried" grep -qE "^\| test \| – \|" dead/gpu_report.md
finish
