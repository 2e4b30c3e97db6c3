#!/usr/bin/env bash
# docs/config.md is what the program says of itself. To renew it: build/bin/starling-train --describe-config > docs/config.md
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
diff <("${STARLING_BUILD:-$root/build}/bin/starling-train" --describe-config) "$root/docs/config.md" && echo "docs/config.md is up to date"
