#!/usr/bin/env bash
# ctest: alone
# The rows that take a minute too.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/comm_bench_test.sh"
