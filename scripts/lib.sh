# Functions that the scripts of this folder share; sourced, not run.
# Environment: STARLING_BUILD (build folder, default <root>/build), STARLING_JOBS (compile jobs), STARLING_SKIP_SETUP=1 (install nothing),
#   STARLING_CUDA_ARCHITECTURES (of GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; default: all that docs/gpu.md names).

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${STARLING_BUILD:-$root/build}
case $build in /*) ;; *) build=$PWD/$build ;; esac

say() { printf '==> %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Compile jobs: as many as cores, but at least 1.5 GB of memory each.
compile_jobs() {
  if [ -n "${STARLING_JOBS:-}" ]; then
    echo "$STARLING_JOBS"
    return
  fi
  local cores available jobs
  cores=$(nproc)
  available=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  jobs=$((${available:-1500} / 1500))
  [ "$jobs" -lt 1 ] && jobs=1
  [ "$jobs" -gt "$cores" ] && jobs=$cores
  echo "$jobs"
}

# configure [CMAKE ARGUMENT...]: configures $build once; a folder that is configured already keeps its generator, and whether files are joined.
configure() {
  local arguments=()
  if [ ! -f "$build/CMakeCache.txt" ]; then
    arguments+=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON) # files are compiled together: half the time
    if command -v ninja >/dev/null; then arguments+=(-G Ninja); fi
  fi
  if [ -n "${STARLING_CUDA_ARCHITECTURES:-}" ]; then arguments+=(-DSTARLING_CUDA_ARCHITECTURES="$STARLING_CUDA_ARCHITECTURES"); fi
  say "configuring in $build"
  mkdir -p "$build" || die "the build folder cannot be made; name another one in STARLING_BUILD"
  cmake -S "$root" -B "$build" "${arguments[@]}" "$@" >"$build/configure.log" 2>&1 || {
    tail -40 "$build/configure.log" >&2
    die "cmake failed; its whole output is in $build/configure.log (a build folder of another checkout or generator can be removed: rm -r '$build')"
  }
}

# compile [TARGET...]: builds the targets (all without one) in $build.
compile() {
  local jobs targets=()
  jobs=$(compile_jobs)
  if [ $# -gt 0 ]; then targets=(--target "$@"); fi
  say "building ${*:-everything} with $jobs job(s)"
  cmake --build "$build" --parallel "$jobs" "${targets[@]}" || die "the build failed; the compiler's message stands above"
}

# What Open MPI needs to be told: that root may run it in a container, and to be quiet about hardware.
mpi_environment() {
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS:-2}
}
