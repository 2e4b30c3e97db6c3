#!/usr/bin/env bash
# A rank that is lost in each phase of averages and switches.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/lost_average_test.sh"
