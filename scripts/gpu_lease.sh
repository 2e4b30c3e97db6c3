#!/usr/bin/env bash
# Prints the command for a machine with a GPU that can be had for 15 minutes: scripts/gpu_lease.sh 1
# or 2; --help says what each is for.
exec python3 -B "$(dirname "${BASH_SOURCE[0]}")/gpu" lease "$@"
