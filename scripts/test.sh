#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests of every change; scripts/nightly.sh
# has those that take longer.
#   scripts/test.sh [ARG...]        ARGs go to ctest: -L unit, -R topology, -V, ...
# Environment: STARLING_BUILD (build), STARLING_JOBS, STARLING_CUDA (AUTO, ON, OFF: the CUDA
# plug-in), STARLING_DATA (real data sets for the
#   tests that want them, default <build>/data).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$root/scripts/setup.sh"
configure -DSTARLING_TESTS=ON -DSTARLING_CUDA="${STARLING_CUDA:-AUTO}"
compile
mpi_environment
export STARLING_DATA=${STARLING_DATA:-$build/data}
say "testing"
exec ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$(test_jobs)" --output-junit "$build/tests.xml" -LE nightly "$@"
