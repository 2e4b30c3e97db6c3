#!/usr/bin/env bash
# Proves and measures the CUDA backend on a machine with a GPU, in parts with a time limit each;
# scripts/gpu_check.sh --help has all of it. This part finds the libraries; scripts/gpu does the
# rest. Where an archive of scripts/pack_gpu.sh was unpacked, its gpu_env.sh names everything; in a
# checkout the part build compiles first.
set -uo pipefail
export STARLING_BUILD=${STARLING_BUILD:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-gpu}
own_help=1
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# PyTorch runs on the libraries that it was shipped with, not on ours.
STARLING_OUTER_LIBRARY_PATH=$(tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}" | grep -v "^$root/" | paste -sd:)
export STARLING_OUTER_LIBRARY_PATH
export STARLING_BUILD=$build
mpi_environment
if [ -f "$root/gpu_env.sh" ]; then
  # shellcheck disable=SC1091
  source "$root/gpu_env.sh" || die "$root/gpu_env.sh says above what is wrong"
fi
export PATH=$PATH:/usr/local/cuda/bin # nvcc, compute-sanitizer
# cuDNN opens the run-time compiler by its name alone.
if [ ! -f "$root/gpu_env.sh" ] && nvcc=$(command -v nvcc); then
  STARLING_CUDA_LIB=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64
  export STARLING_CUDA_LIB LD_LIBRARY_PATH=$STARLING_CUDA_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
command -v python3 >/dev/null || die "python3 is missing; the check is written in it"
exec python3 -B "$root/scripts/gpu" check "$@"
