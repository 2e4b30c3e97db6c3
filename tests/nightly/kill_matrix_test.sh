#!/usr/bin/env bash
# Twenty random kills, and ten thousand steps.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/kill_matrix_test.sh"
