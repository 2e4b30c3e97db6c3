# What the command-line tests share; sourced by *_test.sh. STARLING_BUILD names the build folder
# (default: build).
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
mpi_environment
export train=$build/bin/starling-train
[ -x "$train" ] || die "$train is missing; build it first"
work=$(mktemp -d "${TMPDIR:-/tmp}/starling-cli.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
# Open MPI's programs of one user share a folder in /tmp, which the last to end removes: one that
# begins in that moment fails ("mkdir …: File exists"). Tests that run at the same time have one
# each.
export OMPI_MCA_orte_tmpdir_base=$work/.mpi
checks=0
failures=0

# Whether this is the night's longer test, nightly_NAME, of a script that says "# ctest: longer at
# night".
nightly() { [ -n "${STARLING_NIGHTLY:-}" ]; }

ranks() { # COUNT COMMAND...: the command under mpirun
  local count=$1
  shift
  mpirun -n "$count" "$@"
}

export -f ranks

# Under mpirun, bash -c "$noting" _ COMMAND...: each rank leaves its process and its exit status in
# $LOST_NAME.pid.RANK and $LOST_NAME.status.RANK; mpirun tells one rank's exit status alone.
noting='"$@" &
echo $! >"$LOST_NAME.pid.$OMPI_COMM_WORLD_RANK"
wait $!
echo $? >"$LOST_NAME.status.$OMPI_COMM_WORLD_RANK"'

# same_model FILE FILE: whether the tensors of two .safetensors files have the same bits. Their
# metadata say by what config they were trained.
same_model() {
  python3 - "$@" <<'PYTHON'
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return header, data[8 + length:]
sys.exit(tensors(sys.argv[1]) != tensors(sys.argv[2]))
PYTHON
}
export -f same_model

failed() { # NAME: reports a failure with the last command's output
  failures=$((failures + 1))
  echo "FAILED  $1"
  if [ -f "$work/.out" ]; then sed 's/^/    | /' "$work/.out" | tail -25; fi
}

# check NAME STATUS PATTERN COMMAND...: the command ends with STATUS (or one of "1|75"), in 200 s at
# most (800 at night), and its output matches the extended regular expression. A failing command
# says so in at most 5 lines of stderr (mpirun's own farewell is not counted). Exported functions
# are commands too.
check() {
  local name=$1 expected=$2 pattern=$3 status=0
  shift 3
  checks=$((checks + 1))
  timeout "$(nightly && echo 800 || echo 200)" bash -c '"$@"' _ "$@" >"$work/.stdout" 2>"$work/.stderr" </dev/null || status=$?
  cat "$work/.stdout" "$work/.stderr" >"$work/.out"
  if ! [[ "|$expected|" == *"|$status|"* ]]; then
    failed "$name: exit status $status instead of $expected"
  elif ! grep -qE -e "$pattern" "$work/.out"; then
    failed "$name: no line of the output matches '$pattern'"
  elif [ "$expected" = 2 ] && [ "$(grep -c '^\(rank\|\[\|starling\)' "$work/.stderr")" -gt 5 ]; then
    failed "$name: more than 5 lines on stderr"
  else
    echo "ok      $name"
    return 0
  fi
  return 1
}

# verify NAME COMMAND...: the command succeeds.
verify() {
  local name=$1
  shift
  checks=$((checks + 1))
  if "$@" >"$work/.out" 2>&1; then echo "ok      $name"; else failed "$name"; fi
}

finish() {
  echo "$((checks - failures)) of $checks checks passed"
  [ "$failures" = 0 ] && [ "$checks" -gt 0 ]
  exit
}

# config MODEL LINES: the text of a short run on made-up images, with a loss a step; LINES are more
# keys.
config() {
  cat <<END
{
  "model": $1,
  "data": {"type": "synthetic", "limit": 1024, "test_limit": 256},
$2
  "evaluate": {"every_epochs": 0},
  "log_every": 1
}
END
}
# A run of a second: small.json in the working folder.
small_config() {
  config '{"type": "mlp", "hidden": [32]}' '  "batch_size": 16,
  "steps": 12,
  "optimizer": {"type": "sgd", "lr": 0.02},
  "checkpoint": {"every_epochs": 0},' >small.json
}

# The training losses of an output folder, as `step loss` lines.
losses() { sed -n 's/^{.*"step": *\([0-9]*\).*$/\1 &/p' "$1/metrics.jsonl" | sed -nE 's/^([0-9]+) .*[{,] *"loss": *([^,}]*).*$/\1 \2/p'; }
same_losses() { # FOLDER FOLDER
  [ -n "$(losses "$1")" ] && diff <(losses "$1") <(losses "$2")
}
wait_for_lines() { # FOLDER COUNT: until metrics.jsonl has that many
  for _ in $(seq 300); do
    [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return 0
    sleep 0.1
  done
  echo "no metrics after 30 s" >"$work/.out"
  return 1
}

# install_shim PROGRAM...: copies in installed/bin, which find the plug-in whose kernels run on the
# CPU (tests/fakes/cuda); false where it is not built.
install_shim() {
  [ -e "$build/lib/libstarling_cuda_shim.so" ] || return
  mkdir -p installed/bin installed/lib
  cp "${@/#/$build/bin/}" installed/bin
  ln -s "$build"/lib/*.so* installed/lib
  ln -sf "$build/lib/libstarling_cuda_shim.so" installed/lib/libstarling_cuda.so
}
full_disk() { # COMMAND...: where ./full is a disk of 300 kB, if the kernel lets us make one
  unshare -rm bash -c 'mkdir -p full && mount -t tmpfs -o size=300k none full && "$@"' _ "$@"
}
export -f full_disk

# A number of a JSON file with one key a line or one line in all.
json_number() { sed -nE "s/^.*\"$2\": *([-0-9.eE+]+).*$/\1/p" "$1" | head -1; }
