#!/usr/bin/env bash
# The plug-in against the build folder too.
STARLING_NIGHTLY=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/../cli/plugin_test.sh"
