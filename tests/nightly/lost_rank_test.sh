#!/usr/bin/env bash
# A rank that is lost over each transport, while ranks start, and between hosts.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/lost_rank_test.sh"
