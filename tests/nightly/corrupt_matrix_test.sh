#!/usr/bin/env bash
# Twenty random damages.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/corrupt_matrix_test.sh"
