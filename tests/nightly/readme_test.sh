#!/usr/bin/env bash
# The longer commands of the documentation too.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/readme_test.sh"
