# Functions that the scripts of this folder share; sourced, not run.
# Environment: STARLING_BUILD (build folder, default <root>/build), STARLING_JOBS (compile jobs),
# STARLING_SKIP_SETUP=1 (install nothing),
#   STARLING_CUDA_ARCHITECTURES (of GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; default: all
#   that docs/gpu.md names).

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${STARLING_BUILD:-$root/build}
case $build in /*) ;; *) build=$PWD/$build ;; esac

say() { printf '==> %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# A script that is called with --help first tells what its head says, before it does anything; one
# that sets own_help does so itself.
head_of_script() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }
case ${own_help:-}${1:-} in
  -h | --help)
    head_of_script
    exit 0
    ;;
esac

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

# Tests at a time: more than cores, since most wait for ranks and threads more than they compute.
test_jobs() { echo $((2 * $(nproc))); }

# configure [CMAKE ARGUMENT...]: configures $build once; a folder that is configured already keeps
# its generator, and whether files are joined.
configure() {
  local arguments=()
  if [ ! -f "$build/CMakeCache.txt" ]; then
    # files are compiled together: half the time
    arguments+=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON)
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

# What Open MPI, 4 and 5, needs to be told, which MPICH does not ask for: that root may run it in a
# container, that there may be more ranks than cores, and to be quiet about hardware.
mpi_environment() {
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  export HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS:-2}
}

# mpi_words: hands stdin on to stderr, line by line. Where a rank tells its error, what Open MPI
# adds to it says nothing more, and goes: blocks between two lines of dashes that begin with a
# sentence known here. One that comes before any error is kept back: it is shown at the end where no
# rank has told one. All else stays, such as why a program could not be started. On a terminal lines
# break at words. True where a rank has told its error.
mpi_words() {
  local line dashes=0 told=0 dropped=0 held="" rule slots=0 columns=0
  if [ -t 2 ]; then columns=$(stty size <&2 2>/dev/null | cut -d ' ' -f 2) || columns=0; fi
  local error='^(rank [0-9]+: |starling-[a-z]+: )?\[[a-z][a-z _-]*\] '
  rule=$(printf '%074d' 0)
  rule=${rule//0/-}
  keep_back() { if [ $told = 0 ]; then held+=$1$'\n'; fi; }
  trap '' INT TERM HUP USR1 USR2 QUIT # it ends with its input, after mpirun's last word
  while IFS= read -r line || [ -n "$line" ]; do
    if [[ $line =~ $error ]]; then told=1 held=""; fi
    case $line in "There are not enough slots available "*) slots=1 ;; esac
    # within such a block; one that does not end is not followed for long
    if [ $dropped -gt 0 ]; then
      if [ "$line" = "$rule" ]; then
        keep_back "$line"
        dropped=0
        continue
      elif ! [[ $line =~ $error ]] && [ $dropped -lt 10 ]; then
        keep_back "$line"
        dropped=$((dropped + 1))
        continue
      fi
    fi
    if [ $dashes = 1 ]; then # held back: does one begin?
      dashes=0
      case $line in
        "Primary job  terminated normally, but "* | *"run detected that one or more processes exited with non-zero status"* | *"run has exited due to process rank "* | "MPI_ABORT was invoked on rank "*)
          keep_back "$rule"$'\n'"$line"
          dropped=1
          continue
          ;;
      esac
      printf '%s\n' "$rule"
    fi
    if [ "$line" = "$rule" ]; then
      dashes=1
      continue
    fi
    if [ "${columns:-0}" -gt 0 ] && [ ${#line} -gt "$columns" ]; then
      fold -s -w "$columns" <<<"$line"
    else
      printf '%s\n' "$line"
    fi
  done >&2
  if [ $dashes = 1 ]; then printf '%s\n' "$rule" >&2; fi
  printf '%s' "$held" >&2
  if [ $slots = 1 ]; then
    warn "mpirun counts fewer slots than ranks: OMPI_MCA_rmaps_base_oversubscribe=1 has it start more, or name hosts with more slots, such as --hosts a:4"
  fi
  [ $told = 1 ]
}

# start_mpi COMMAND...: starts mpirun, as process $mpi_job. It is in a session of its own, so that
# Ctrl-C in a terminal reaches this script alone, which says what it means for the ranks (stop_mpi);
# where this script is killed, that is a stop too. mpirun gets no SIGTERM: batch systems send it to
# all processes of a job, ranks included, and mpirun would end those while they write their
# checkpoint.
mpi_job="" mpi_filter="" signals=0 stopped=0
start_mpi() {
  local words bound=()
  if setpriv --pdeathsig USR1 true 2>/dev/null; then bound+=(setpriv --pdeathsig USR1); fi
  if env --block-signal=TERM true 2>/dev/null; then bound+=(env --block-signal=TERM); fi
  exec {words}> >(mpi_words >&2)
  mpi_filter=$!
  setsid "${bound[@]}" "$@" <&0 2>&"$words" {words}>&- &
  mpi_job=$!
  exec {words}>&-
}

# stop_mpi SIGNAL, for on_stop: ranks get SIGUSR1, on which they write a checkpoint and end with 75,
# however long it takes. As for a rank itself, SIGUSR1 and SIGUSR2 may come often, and a second one
# of the others ends all at once.
stop_mpi() {
  local pass=USR1
  signals=$((signals + 1))
  case $1 in
    USR?) ;;
    *)
      if [ $stopped = 1 ]; then pass=INT; fi
      stopped=1
      ;;
  esac
  [ -z "$mpi_job" ] || kill -$pass "$mpi_job" 2>/dev/null || true
}

# on_stop COMMAND: each signal that asks for a stop calls it, with the signal's name.
on_stop() {
  local signal
  # shellcheck disable=SC2064 # both names are known now
  for signal in TERM INT HUP USR1 USR2; do trap "$1 $signal" $signal; done
}

# wait_mpi: waits for it and its last words; its exit status. told=1: a rank has told its error.
# Each signal ends a wait too early, which `signals` tells.
told=0
wait_mpi() {
  local seen status
  while :; do
    seen=$signals status=0
    { wait "$mpi_job" || status=$?; } 2>/dev/null # without bash's own word on a killed one
    [ "$seen" = "$signals" ] && break
  done
  mpi_job="" told=0
  # Who else holds that end of the pipe, such as a process that a rank left, is not waited for.
  for _ in $(seq 100); do
    if ! kill -0 "$mpi_filter" 2>/dev/null; then
      if wait "$mpi_filter"; then told=1; fi
      break
    fi
    sleep 0.02
  done
  return "$status"
}
