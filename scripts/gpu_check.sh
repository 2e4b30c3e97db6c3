#!/usr/bin/env bash
# Proves the CUDA backend on a machine with a GPU, in one command of 9 minutes at most on 16 cores: builds, runs every test that needs a GPU,
# lets several ranks share it (NCCL, host memory, each other's memory), compares steps that are CUDA graphs with steps that are issued, measures
# against PyTorch, and what exchanges add to a step (predicted where there is one GPU), checks the kernels with compute-sanitizer, and writes a
# report.
#   scripts/gpu_check.sh [--only build,tests,ranks,graphs,bench,sanitize] [--dry-run] [OUT]
#     OUT         folder for gpu_report.md, the logs and timelines (default: <build>/gpu_check)
#     --only      some of the parts; what they need is built in any case
#     --dry-run   prints the steps and their commands and does nothing
# Environment: STARLING_BUILD (default build-gpu), STARLING_DEPS (a folder made by scripts/pack_deps.sh, where nothing can be installed),
#   STARLING_COMMIT (where the tree has no git history), STARLING_CHECK_SECONDS (540),
#   STARLING_CUDA_ARCHITECTURES (default: this GPU's), STARLING_CHECK_BUILT=1 (STARLING_BUILD is built already: nothing is configured or compiled).
# Every step has a time limit, and a failing one does not stop the others. Exit status: 0 all that was asked for passed, 1 something failed,
# 4 there is no GPU, so that nothing beyond the build was proven.
set -uo pipefail
export STARLING_BUILD=${STARLING_BUILD:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-gpu}
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

parts="build tests ranks graphs bench sanitize"
dry_run=0
out=""
while [ $# -gt 0 ]; do
  case $1 in
    --only | --only=*)
      if [ "$1" = --only ]; then
        [ $# -ge 2 ] || die "--only: a list such as tests,bench is needed"
        shift
      fi
      parts=${1#--only=}
      parts=${parts//,/ }
      for part in $parts; do
        case $part in build | tests | ranks | graphs | bench | sanitize) ;; *) die "--only: unknown part '$part'; known: build, tests, ranks, graphs, bench, sanitize" ;; esac
      done
      [ -n "$parts" ] || die "--only: a list such as tests,bench is needed"
      ;;
    --dry-run) dry_run=1 ;;
    -h | --help)
      sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    -*) die "unknown option '$1'; see --help" ;;
    *)
      [ -z "$out" ] || die "two output folders are given: $out and $1"
      out=$1
      ;;
  esac
  shift
done
out=${out:-$build/gpu_check}
case $out in /*) ;; *) out=$PWD/$out ;; esac
has() { case " $parts " in *" $1 "*) return 0 ;; esac; return 1; }

proof=$root/docs/gpu-proof.md
device_test=$build/bin/test_cuda_device
bench=$build/bin/starling-bench
seconds_in_all=${STARLING_CHECK_SECONDS:-540}
left() { echo $((seconds_in_all - SECONDS)); }

# step NAME LIMIT LOG COMMAND...: runs the command for LIMIT seconds at most, or what is left; notes how it ended.
results=()
failures=0
last_status=0
step() {
  local name=$1 limit=$2 log=$out/$3 begin=$SECONDS status=0 word
  shift 3
  if [ $dry_run = 1 ]; then
    printf '%-34s %4s s at most: %s\n' "$name" "$limit" "$*"
    return 0
  fi
  [ "$limit" -le "$(left)" ] || limit=$(left)
  if [ "$limit" -lt 3 ]; then
    last_status=125
    results+=("$name|not run|0|no time was left")
    failures=$((failures + 1))
    return 1
  fi
  printf '\n=== %s\n' "$name" >>"$log"
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null || status=$?
  last_status=$status
  case $status in
    0) word=passed ;;
    124 | 137) word="FAILED: no end within $limit s" ;;
    *) word="FAILED: exit status $status" ;;
  esac
  if [ $status != 0 ]; then failures=$((failures + 1)); fi
  results+=("$name|$word|$((SECONDS - begin))|")
  printf '%-40s %s (%d s, at %d s)\n' "$name" "$word" $((SECONDS - begin)) "$SECONDS"
  return $status
}
not_run() { # NAME REASON
  if [ $dry_run = 0 ]; then results+=("$1|not run|0|$2"); fi
}

# ------------------------------------------------------------------------------------------------------------ what is here

export PATH=$PATH:/usr/local/cuda/bin
if [ -n "${STARLING_DEPS:-}" ]; then
  [ -f "$STARLING_DEPS/env.sh" ] || die "STARLING_DEPS=$STARLING_DEPS has no env.sh; scripts/pack_deps.sh makes such a folder"
  # shellcheck disable=SC1091
  source "$STARLING_DEPS/env.sh"
fi
mpi_environment
# cuDNN opens the run-time compiler by its name alone.
if nvcc=$(command -v nvcc); then
  STARLING_CUDA_LIB=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64
  export STARLING_CUDA_LIB LD_LIBRARY_PATH=$STARLING_CUDA_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
gpu=0
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c '^[0-9]')
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  visible=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '[^[:space:]]')
  if [ "$visible" -lt "$gpus" ]; then gpus=$visible; fi
fi
device="no GPU"
if gpu_line=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1) && [ -n "$gpu_line" ]; then
  gpu=1
  device=$gpu_line
fi
commit=$(git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null) || commit=${STARLING_COMMIT:-unknown}
python=$(command -v python3 || true)

architectures=()
if [ -n "${STARLING_CUDA_ARCHITECTURES:-}" ]; then
  architectures=(-DSTARLING_CUDA_ARCHITECTURES="$STARLING_CUDA_ARCHITECTURES")
elif [ $gpu = 1 ]; then
  capability=$(cut -d, -f2 <<<"$gpu_line" | tr -d ' .')
  architectures=(-DSTARLING_CUDA_ARCHITECTURES="$capability-real") # this GPU's alone: CI compiles for the others
fi

# Rows of docs/gpu-proof.md: source file and the names of its tests on a device.
proof_rows() { awk -F'|' '/^\| `(kernels\/cuda|comm)\// { gsub(/[` ]/, "", $2); gsub(/[` ]/, "", $4); print $2 "|" $4 }' "$proof"; }

if [ $dry_run = 0 ]; then
  mkdir -p "$out" || die "the folder $out cannot be made"
  rm -f "$out"/{gpu_report.md,{build,tests,ranks,graphs,bench,sanitize}.log,ranks.md,graphs.md,goals.md,goals.json,goals_graphs.md,goals_graphs.json,goals_host.md} "$out"/goals_{exchange,scheduler}.{md,json}
  rm -rf "$out/traces"
  say "device: $device; commit $commit; report: $out/gpu_report.md"
else
  say "steps of gpu_check.sh (parts: $parts), $seconds_in_all s at most in all; device: $device"
fi

# ------------------------------------------------------------------------------------------------------------ build

built=${STARLING_CHECK_BUILT:-0}
case $built in 0 | 1) ;; *) die "STARLING_CHECK_BUILT is '$built'; it is 0 or 1" ;; esac
if [ -z "${STARLING_DEPS:-}" ] && [ $dry_run = 0 ] && [ "$built" = 0 ]; then
  timeout 100 "$root/scripts/get_cudnn_frontend.sh" >>"$out/build.log" 2>&1 || true # where it is missing, configuring says so
fi
generator=()
if command -v ninja >/dev/null && [ ! -f "$build/CMakeCache.txt" ]; then generator=(-G Ninja); fi
if [ "$built" = 1 ]; then
  not_run "configure, build" "$build is taken as it is"
else
  step "configure" 60 build.log cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DSTARLING_CUDA=ON -DSTARLING_TESTS=ON \
    -DSTARLING_WERROR=OFF -DSTARLING_GPU_TESTS=ON "${architectures[@]}" ${STARLING_DEPS:+-DCMAKE_PREFIX_PATH="$STARLING_DEPS/usr"}
fi

# The compiler of PyTorch's peer works while ours does.
warming=""
if has bench && [ $gpu = 1 ] && [ $dry_run = 0 ] && [ -n "$python" ]; then
  export TORCHINDUCTOR_CACHE_DIR=$build/inductor
  timeout 200 nice -n 10 "$python" "$root/scripts/gpu_bench.py" --warm >>"$out/bench.log" 2>&1 </dev/null &
  warming=$!
fi

if [ "$built" = 0 ]; then
  targets=(starling_cuda)
  if has tests || has sanitize || has build; then targets+=(test_cuda_device); fi
  if has tests || has ranks || has graphs || has bench || has build; then targets+=(starling-train starling-bench starling-topo); fi
  known_targets() { cmake --build "$build" --target help 2>/dev/null | sed -E 's/^\.\.\. //; s/:.*$//; s/ .*$//'; }
  if [ $dry_run = 0 ] && [ -f "$build/CMakeCache.txt" ]; then
    mapfile -t targets < <(grep -Fxf <(known_targets) <(printf '%s\n' "${targets[@]}"))
  fi
  keep_going=-k0
  if [ -f "$build/Makefile" ]; then keep_going=-k; fi
  step "build" 330 build.log cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}" -- "$keep_going"
fi
if has tests || has build || has sanitize; then
  step "test discovery" 30 build.log "$device_test" --list-test-cases
  step "test discovery, ctest" 30 build.log ctest --test-dir "$build" -N -L gpu
fi

# ------------------------------------------------------------------------------------------------------------ tests

# The device tests of some names; none that match are a failure, not a pass.
run_cases() { # PROGRAM NAMES
  local found
  found=$("$1" --list-test-cases --test-case="$2" | grep -cE '^[a-z]+/')
  if [ "$found" = 0 ]; then
    echo "no test case matches '$2'"
    return 1
  fi
  "$1" --test-case="$2"
}
export -f run_cases

# A short training on the GPU ends where the same training on the CPU does.
train_check() { # NAME PRECISION TOLERANCE RANKS CONFIG SETTING...
  local name=$1 precision=$2 tolerance=$3 ranks=$4 config=$5 folder loss=() settings=()
  shift 5
  for setting in "$@"; do settings+=(--set "$setting"); done
  folder=$(mktemp -d)
  for where in cpu cuda; do
    local computed=$precision
    if [ "$where" = cpu ]; then computed=fp32; fi
    STARLING_SHARE_GPUS=1 mpirun --oversubscribe --bind-to none -n "$ranks" "$build/bin/starling-train" "$root/configs/$config" "${settings[@]}" \
      --set log_every=5 --set precision="$computed" --device "$where" --output "$folder/$where" || {
      echo "$name: training on $where ended with exit status $?"
      return 1
    }
    loss+=("$(sed -nE 's/^\{.*"loss": ?([-0-9.eE+]+).*$/\1/p' "$folder/$where/metrics.jsonl" | tail -1)")
  done
  rm -r "$folder"
  echo "$name: loss ${loss[0]} on the CPU, ${loss[1]} on the GPU in $precision"
  awk -v a="${loss[0]}" -v b="${loss[1]}" -v t="$tolerance" 'BEGIN { d = a > b ? a - b : b - a; exit !(a != "" && b != "" && d <= t * (a < 0 ? -a : a)) }'
}
export -f train_check
export build root

file_rows=()
if has tests; then
  if [ $gpu = 1 ] || [ $dry_run = 1 ]; then
    # Names of one kind run in a process of their own: what breaks the device breaks one process.
    declare -A name_status=()
    mapfile -t names < <(proof_rows | cut -d'|' -f2 | tr ',' '\n' | grep -vx -e - -e '' -e 'ranks:.*' | sort -u)
    for name in "${names[@]}"; do
      step "tests $name" 60 tests.log bash -c 'run_cases "$@"' _ "$device_test" "$name"
      name_status[$name]=$last_status
    done
    while IFS='|' read -r source patterns; do
      case $patterns in '' | - | ranks:*) continue ;; esac
      status=0
      for name in ${patterns//,/ }; do
        if [ "${name_status[$name]:-0}" != 0 ]; then status=${name_status[$name]}; fi
      done
      file_rows+=("$source|$status|$patterns")
    done < <(proof_rows)
    step "all other device tests" 60 tests.log "$device_test" --test-case-exclude="$(IFS=,; echo "${names[*]}")"
    step "other programs' device tests" 60 tests.log ctest --test-dir "$build" -L gpu -E '^cuda_device$' --output-on-failure --timeout 50
    for case in "fp32 0.02 1" "bf16 0.1 1" "fp16 0.1 1" "fp32 0.02 2"; do
      read -r precision tolerance ranks <<<"$case"
      step "training, $precision, $ranks rank(s)" 45 tests.log bash -c 'train_check "$@"' _ "MLP $precision" "$precision" "$tolerance" "$ranks" synthetic_mlp.json \
        data.limit=2048 steps=40 optimizer.lr=0.0003
    done
    step "training, convolutions" 60 tests.log bash -c 'train_check "$@"' _ "ResNet-20 fp32" fp32 0.05 1 cifar10_resnet20.json \
      'data={"type":"synthetic","limit":512}' batch_size=64 epochs=2 evaluate.every_epochs=0 optimizer.lr=0.0001 schedule.warmup_steps=0
  else
    not_run "tests on a device" "no GPU here"
  fi
fi

# ------------------------------------------------------------------------------------------------------------ several ranks on one GPU

# Whatever takes several processes is a command of scripts/gpu_ranks.py (NCCL, host memory) or scripts/gpu_peer.py (GPU memory that they share)
# and a step here. These scripts write a row for each check to ranks.md.
# Where docs/gpu-proof.md names `ranks:WORD` as a file's tests, these are the rows with that word; a step that ended without rows fails all.
ranks_broken=0
rank_step() { # NAME LIMIT SCRIPT ARGUMENT...
  local name=$1 limit=$2 arguments=("$root/scripts/$3" "${@:4}" --train "$build/bin/starling-train") keep=()
  if [ "$3" = gpu_ranks.py ]; then keep=(--keep "$out/traces"); fi
  if [ $dry_run = 0 ] && [ "$limit" -gt $((ranks_end - SECONDS)) ]; then limit=$((ranks_end - SECONDS)); fi
  step "$name" "$limit" ranks.log "${python:-python3}" "${arguments[@]}" --jobs "$rank_jobs" --seconds 45 --out "$out/ranks.md" "${keep[@]}"
  if [ $dry_run = 1 ]; then
    if [ -n "$python" ]; then "$python" "${arguments[@]}" --dry-run; fi
  elif [ "$last_status" != 0 ] && [ "$last_status" != 1 ]; then
    ranks_broken=$last_status
  fi
}
rank_verdict() { # WORD: an exit status; nothing where nothing ran
  local rows
  if [ $ranks_broken != 0 ]; then echo $ranks_broken && return; fi
  rows=$(awk -F'|' -v word="$1" '$2 ~ "(^|[ ,])" word "([ ,]|$)" && $3 !~ /skipped/' "$out/ranks.md" 2>/dev/null)
  if [ -z "$rows" ]; then return; elif grep -qF '| **FAIL** |' <<<"$rows"; then echo 1; else echo 0; fi
}

if has ranks; then
  if [ $gpu = 1 ] || [ $dry_run = 1 ]; then
    rank_jobs=$(($(nproc) / 2))
    ranks_end=$((SECONDS + 200)) # what follows needs its time too
    if [ "$parts" = ranks ]; then ranks_end=$seconds_in_all; fi
    for ranks in 1 2 4; do rank_step "ranks: $ranks, every topology" 90 gpu_ranks.py agree --ranks $ranks; done
    rank_step "ranks: fp16 overflow on one" 60 gpu_ranks.py overflow
    rank_step "ranks: one is lost" 80 gpu_ranks.py lost
    rank_step "ranks: timeline" 60 gpu_ranks.py trace
    for ranks in 2 4; do rank_step "ranks: $ranks that read each other" 90 gpu_peer.py agree --ranks $ranks; done
    rank_step "ranks: one that others read is lost" 60 gpu_peer.py lost
    rank_step "ranks: one that shares no memory" 40 gpu_peer.py refused
  else
    not_run "several ranks on one GPU" "no GPU here"
  fi
fi

# ------------------------------------------------------------------------------------------------------------ steps as graphs

# Commands of scripts/gpu_graphs.py: the same bits with graphs and without, then what the host does meanwhile, with the GPU to itself; and
# the measurements that graphs and the scheduler are for. What exchanges add to a step is measured where there are several GPUs, six runs of which
# each has its start; else it is predicted from what was measured before.
exchange_seconds=20
if [ "$gpus" -gt 1 ]; then exchange_seconds=110; fi
graph_step() { # NAME LIMIT ARGUMENT...
  local name=$1 limit=$2 arguments=("$root/scripts/gpu_graphs.py" "${@:3}" --train "$build/bin/starling-train")
  step "$name" "$limit" graphs.log "${python:-python3}" "${arguments[@]}" --seconds 45 --out "$out/graphs.md" --goals "$out/goals_host.md" --keep "$out/traces"
  if [ $dry_run = 1 ] && [ -n "$python" ]; then "$python" "${arguments[@]}" --dry-run; fi
}
if has graphs; then
  if [ $gpu = 1 ] || [ $dry_run = 1 ]; then
    for ranks in 1 2; do graph_step "graphs: the bits of steps without, $ranks rank(s)" 80 agree --ranks $ranks; done
    graph_step "graphs: the same, 2 that read each other" 60 agree --ranks 2 --transport direct
    if [ -n "$warming" ]; then wait "$warming" && warming=""; fi
    graph_step "graphs: host time of a step" 50 host
    limit=$((seconds_in_all - SECONDS - 20))
    if has bench; then limit=$((limit - 150 - exchange_seconds)); fi
    if has sanitize; then limit=$((limit - 60)); fi
    [ "$limit" -le 150 ] || limit=150
    step "graphs and scheduler, bench" "$limit" graphs.log "${python:-python3}" "$root/scripts/gpu_bench.py" --only resnet20,scheduler --name goals_graphs \
      --bench "$bench" --out "$out" --seconds $((limit - 10))
  else
    not_run "steps as graphs" "no GPU here"
  fi
fi

# ------------------------------------------------------------------------------------------------------------ bench, with the GPU to itself

if has bench; then
  if [ -n "$warming" ]; then wait "$warming"; fi
  step "floors" 30 bench.log "$bench" floor
  step "the scheduler's own cost" 30 bench.log "${python:-python3}" "$root/scripts/gpu_bench.py" --only scheduler-cost --name goals_scheduler --bench "$bench" \
    --out "$out" --seconds 25
  if [ $gpu = 1 ] || [ $dry_run = 1 ]; then
    for precision in bf16 fp32; do
      step "timing of operations, $precision" 30 bench.log "$bench" kernels --device cuda --precision "$precision" --repeats 5
    done
    limit=$((seconds_in_all - SECONDS - 20 - exchange_seconds))
    if has sanitize; then limit=$((limit - 60)); fi
    [ "$limit" -le 240 ] || limit=240
    step "bench against PyTorch" "$limit" bench.log "${python:-python3}" "$root/scripts/gpu_bench.py" --bench "$bench" --out "$out" --seconds $((limit - 10))
    limit=$((exchange_seconds + 20)) # and a step and an update, where the bench has left none
    step "exposed exchange, bench" "$limit" bench.log "${python:-python3}" "$root/scripts/gpu_bench.py" --only exchange --parts "$out/goals.json" \
      --name goals_exchange --bench "$bench" --out "$out" --seconds $((limit - 5))
  else
    not_run "bench against PyTorch" "no GPU here"
    not_run "exposed exchange, bench" "no GPU here"
  fi
fi

# ------------------------------------------------------------------------------------------------------------ sanitizers

sanitize() { # COMPUTE-SANITIZER PROGRAM NAMES: both tools at a time
  local status=0 tool process processes=()
  for tool in memcheck racecheck; do  # no pipeline: the process to wait for, and its status, are the tool's
    "$1" --tool $tool --error-exitcode 99 "$2" --test-case="$3" > >(sed -u "s/^/$tool: /") 2>&1 &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || status=$?; done
  return $status
}
export -f sanitize

if has sanitize; then
  sanitizer=$(command -v compute-sanitizer || true)
  if [ $dry_run = 0 ] && [ -z "$sanitizer" ]; then
    not_run "compute-sanitizer" "it is not installed (a part of the CUDA toolkit)"
  elif [ $gpu = 0 ] && [ $dry_run = 0 ]; then
    not_run "compute-sanitizer" "no GPU here"
  else
    # Own kernels: the tests of the .cu files. The whole table of operations would mostly check the libraries, and take too long.
    # And graphs, whose captured kernels run on several streams; not the whole trainings of their tests.
    kernels=$(proof_rows | awk -F'|' '$1 ~ /\.cu$/ || $1 ~ /graph\.cpp$/ { print $2 }' | tr ',' '\n' | grep -vx -e - -e '' -e 'cuda/operations\*' -e 'cuda/graph_training\*' | sort -u | paste -sd, -)
    step "compute-sanitizer memcheck, racecheck" 140 sanitize.log bash -c 'sanitize "$@"' _ "${sanitizer:-compute-sanitizer}" "$device_test" "$kernels"
  fi
fi
if [ $dry_run = 1 ]; then exit 0; fi

# ------------------------------------------------------------------------------------------------------------ report

version_of() { "$@" 2>/dev/null | tail -1; }
report=$out/gpu_report.md
{
  echo "# GPU check"
  echo
  echo "| | |"
  echo "|---|---|"
  echo "| device | $device |"
  echo "| commit | $commit |"
  echo "| date | $(date -u '+%Y-%m-%d %H:%M UTC') |"
  echo "| host | $(uname -srm), $(nproc) cores |"
  echo "| CUDA compiler | $(version_of nvcc --version) |"
  echo "| Starling | $("$build/bin/starling-train" --version 2>/dev/null | tr '\n' ';' || true) |"
  nccl=$(sed -n 's/^STARLING_NCCL_VERSION:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null)
  echo "| NCCL | ${nccl:-none} |"
  if [ -n "$python" ]; then
    echo "| PyTorch | $(timeout 60 "$python" -c 'import torch; print(torch.__version__, "cuDNN", torch.backends.cudnn.version())' 2>/dev/null || echo none) |"
  fi
  echo "| time | $SECONDS s of $seconds_in_all |"
  echo
  echo "## Steps"
  echo
  echo "| step | result | seconds | |"
  echo "|---|---|---|---|"
  for row in "${results[@]}"; do echo "| ${row//|/ | } |"; done
  echo
  echo "## CUDA source files"
  echo
  echo "| file | on this device | its tests |"
  echo "|---|---|---|"
  while IFS='|' read -r source patterns; do
    verdict="not run"
    case $patterns in ranks:*)
      status=$(rank_verdict "${patterns#ranks:}")
      if [ -n "$status" ]; then file_rows+=("$source|$status|$patterns"); fi
      ;;
    esac
    for row in "${file_rows[@]:-}"; do
      if [ "${row%%|*}" = "$source" ]; then
        status=$(cut -d'|' -f2 <<<"$row")
        if [ "$status" = 0 ]; then verdict=pass; elif [ "$status" = 125 ]; then verdict="not run: no time was left"; else verdict="**FAIL** (exit status $status)"; fi
      fi
    done
    echo "| \`$source\` | $verdict | \`$patterns\` |"
  done < <(proof_rows)
  echo
  echo "## Several ranks on one GPU"
  echo
  if [ -f "$out/ranks.md" ]; then
    printf '| what | result | |\n|---|---|---|\n'
    cat "$out/ranks.md"
  else
    echo "Not run."
  fi
  echo
  echo "## Steps as graphs"
  echo
  if [ -f "$out/graphs.md" ]; then
    printf '| what | result | |\n|---|---|---|\n'
    cat "$out/graphs.md"
    if [ -f "$out/goals_host.md" ] || [ -f "$out/goals_graphs.md" ]; then
      printf '\n| what | goal | measured | |\n|---|---|---|---|\n'
      for table in "$out/goals_host.md" "$out/goals_graphs.md"; do
        if [ -f "$table" ]; then grep -v -e '^| what ' -e '^|---' "$table"; fi
      done
    fi
    if [ -d "$out/traces" ]; then printf '\nTimelines, for Perfetto: %s\n' "$(ls "$out/traces" | sed 's|^|`traces/|; s|$|`|' | paste -sd, | sed 's/,/, /g')"; fi
  else
    echo "Not run."
  fi
  echo
  echo "## Goals"
  echo
  if [ -f "$out/goals.md" ]; then cat "$out/goals.md"; else echo "Not measured. Floors of one H200, from shapes alone:" && printf '\n```\n' && "$bench" floor 2>/dev/null && echo '```'; fi
  if [ -f "$out/goals_exchange.md" ] || [ -f "$out/goals_scheduler.md" ]; then
    if [ ! -f "$out/goals.md" ]; then printf '\n| what | goal | measured | |\n|---|---|---|---|\n'; fi
    for table in "$out/goals_exchange.md" "$out/goals_scheduler.md"; do
      if [ -f "$table" ]; then grep -v -e '^| what ' -e '^|---' "$table"; fi
    done
  fi
  if [ $failures != 0 ]; then
    for log in build tests ranks graphs bench sanitize; do
      [ -f "$out/$log.log" ] || continue
      lines=$(grep -nE '(^|[^A-Za-z])(error|fatal|ERROR):|[A-Za-z]Error: |FAILED|========= (Invalid|Race|Error)|no test case matches|ended with exit status' "$out/$log.log" | head -12)
      if [ -n "$lines" ]; then printf '\n## First errors of %s.log\n\n```\n%s\n```\n' "$log" "${lines:0:3000}"; fi
    done
  fi
} >"$report"
say "report: $report"
if [ $failures != 0 ]; then
  printf '%d step(s) FAILED\n' $failures
  exit 1
fi
if [ $gpu = 0 ]; then
  echo "there is no GPU here: built, tests found, nothing proven on a device"
  exit 4
fi
echo "all passed"
