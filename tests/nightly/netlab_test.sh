#!/usr/bin/env bash
# ctest: alone
# Slow, cut and stalled links, ports and lost hosts too.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/netlab_test.sh"
