# What .ci/run and scripts/nightly.sh share; sourced after lib.sh.

# .ci/green has a line for each part that passed: PART COMMIT DATE MINUTES. Here the commit; "": none
# that this checkout knows.
green_commit() { # PART
  local commit
  commit=$(awk -v part="$1" '$1 == part {print $2}' "$root/.ci/green")
  if [ -n "$commit" ] && git merge-base --is-ancestor "$commit" HEAD 2>/dev/null; then echo "$commit"; fi
}
# Notes that a part is green, where the checkout is clean but for that file.
note_green() { # PART SECONDS
  git diff --quiet HEAD -- ':!.ci/green' || { say "$1 passed; .ci/green stays as it is, since the checkout has changes" && return; }
  { grep -v "^$1 " "$root/.ci/green" && echo "$1 $(git rev-parse --short=10 HEAD) $(date -u +%F) $((($2 + 59) / 60))"; } | sort >"$root/.ci/green.new"
  mv "$root/.ci/green.new" "$root/.ci/green"
}
# The files that differ from then, those of the work tree included; all where no commit is known.
changed_since() { # COMMIT
  if [ -n "$1" ]; then git diff --name-only --diff-filter=d "$1"; else git ls-files; fi
}

# The files that are compiled as one unit: of a file that includes others (CMAKE_UNITY_BUILD) those.
files_of_unit() { case $1 in */Unity/*) sed -nE 's/^#include "(.*)"/\1/p' "$1" ;; *) echo "$1" ;; esac; }
# END UNIT, in a process of its own; notes units that there was no time for, and those that passed
# with these headers
tidy_one() {
  local left=$(($1 - $(date +%s))) status=0 key files
  files=$(files_of_unit "$2")
  key=$tidy_passed/$(xargs cat <<<"$files" | cat - <(echo "${files//$root/}") | sha256sum | head -c 20)
  if [ -f "$key" ]; then return 0; fi
  if [ $left -le 5 ]; then
    echo "$files" >>"$tidy_notes/left"
    return 0
  fi
  timeout $left clang-tidy -p "$tidy_build" --quiet --warnings-as-errors='*' "$2" >"$tidy_notes/log.$$" 2>&1 || status=$?
  if [ $status = 124 ]; then
    echo "$files" >>"$tidy_notes/left"
  elif [ $status != 0 ]; then
    grep -E 'error:' "$tidy_notes/log.$$" | sed "s#$root/##g" | tee -a "$tidy_notes/failed" | grep . || tail -3 "$tidy_notes/log.$$" | tee -a "$tidy_notes/failed"
  else
    : >"$key"
  fi
  return 0
}
# tidy SECONDS FILE...: clang-tidy on those of the files that a build without CUDA compiles, and on
# what is compiled together with them: that reads the headers once. Fails for what it objects to;
# files that there was no time for are named, and in $tidy_notes/left.
tidy() {
  local seconds=$1 units build=$root/build-tidy
  shift
  # Clang cannot read gcc's precompiled headers, nor all that gcc is told.
  configure -DSTARLING_TESTS=OFF -DSTARLING_CUDA=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD=ON
  units=$(sed -nE 's/^ *"file": "(.*)",?$/\1/p' "$build/compile_commands.json" | sort -u | while read -r unit; do
    if files_of_unit "$unit" | grep -qxFf <(printf "$root/%s\n" "$@"); then echo "$unit"; fi
  done) || true
  if [ -z "$units" ]; then
    say "no file to check"
    return
  fi
  tidy_notes=$(mktemp -d)
  tidy_build=$build
  tidy_passed=$build/passed/$(git ls-files -z '*.h' '*.cuh' .clang-tidy | xargs -0 cat <(sed "s#$root##g" "$build/compile_commands.json") <(clang-tidy --version) | sha256sum | head -c 20)
  mkdir -p "$tidy_passed"
  export root tidy_notes tidy_build tidy_passed
  export -f files_of_unit tidy_one
  say "clang-tidy on $(while read -r unit; do files_of_unit "$unit"; done <<<"$units" | wc -l) file(s), at most $seconds s"
  xargs -P "$(nproc)" -I{} bash -c 'tidy_one "$@"' _ $(($(date +%s) + seconds)) {} <<<"$units"
  if [ -s "$tidy_notes/left" ]; then warn "no time for $(wc -l <"$tidy_notes/left") file(s): $(sed "s#$root/##" "$tidy_notes/left" | tr '\n' ' ')"; fi
  if [ -s "$tidy_notes/failed" ]; then
    echo "clang-tidy objects to $(wc -l <"$tidy_notes/failed") place(s)"
    return 1
  fi
}

# Sanitizers want a plain address space layout; where the container forbids that, they usually run
# all the same.
plain_layout() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi
}
# sanitized PRESET FUZZ_SECONDS NAME...: builds and runs the unit-test programs test_NAME (with
# comm_families, the rest of test_comm), and fuzz_NAME for so long each; builds starling-NAME. With
# $sanitizers in place of the preset's.
sanitized() {
  local preset=$1 seconds=$2 targets=() pattern=""
  shift 2
  for name in "$@"; do
    case $name in fuzz_* | starling-*) targets+=("$name") ;; *) targets+=("test_${name%_families}") ;; esac
    pattern+="${pattern:+|}$name"
  done
  mkdir -p "$root/build-$preset"
  cmake --preset "$preset" -DSTARLING_FUZZ_SECONDS="$seconds" ${sanitizers:+-DSTARLING_SANITIZE="$sanitizers"} >"$root/build-$preset/configure.log" || {
    cat "$root/build-$preset/configure.log"
    return 1
  }
  cmake --build --preset "$preset" --parallel "$(compile_jobs)" --target "${targets[@]}"
  mpi_environment
  plain_layout ctest --test-dir "$root/build-$preset" --output-on-failure --no-tests=error --timeout $((600 + seconds)) --parallel "$(test_jobs)" \
    --output-junit "$root/build-$preset/tests.xml" -R "^($pattern)\$"
}
address_sanitizer() { # FUZZ_SECONDS NAME...
  # MPI, oneDNN and OpenMP keep memory to the end; leaks of our own show in the tests that count
  # allocations.
  export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  sanitized asan "$@"
}
thread_sanitizer() { # NAME...
  export TSAN_OPTIONS=suppressions=$root/.ci/tsan.supp:second_deadlock_stack=1:halt_on_error=0
  export OMP_NUM_THREADS=1
  sanitized tsan 1 starling-train "$@"
  # The trainer's own threads over MPI: communication, loader, signals. A small model has as many
  # buckets to hand over as a large one.
  local folder log
  folder=$(mktemp -d) && log=$folder/log
  for topology in complete base-2; do
    plain_layout mpirun --oversubscribe -n 3 build-tsan/bin/starling-train configs/synthetic_mlp.json --set data.limit=2048 \
      --set data.test_limit=256 --set 'model.hidden=[64, 64]' --set sync.bucket_mb=0.01 --set steps=60 --set log_every=1 --set "sync.topology={\"type\": \"$topology\"}" --set checkpoint.every_steps=20 \
      --output "$folder/$topology" >"$log" 2>&1 && ! grep -q 'WARNING: ThreadSanitizer' "$log" || { cat "$log" && return 1; }
  done
  rm -r "$folder"
}

# slowest COUNT FILE...: the tests that took longest, from ctest's JUnit files, as "seconds name".
slowest() {
  local count=$1
  shift
  sed -nE 's/.*<testcase name="([^"]*)".* time="([0-9.]*)".*/\2 \1/p' "$@" 2>/dev/null | sort -rn | head -"$count" | awk '{printf "%8.1f s  %s\n", $1, $2}'
}

# Where nvcc, cuDNN and its headers are, the CUDA plug-in must build: left out, it would go
# untested. Without a GPU one architecture shows that it compiles, and the look at machine code
# takes that one.
insist_on_cuda() {
  if { command -v nvcc || compgen -G '/usr/local/cuda*/bin/nvcc'; } >/dev/null && [ -f "$build/deps/cudnn-frontend/include/cudnn_frontend.h" ] &&
    { ldconfig -p | grep -q 'libcudnn\.so' || compgen -G '/usr/local/cuda*/lib*/libcudnn.so*'; } >/dev/null; then
    export STARLING_CUDA=ON STARLING_CUDA_ARCHITECTURES=${STARLING_CUDA_ARCHITECTURES:-90-real}
  fi
}
