#!/usr/bin/env bash
# Builds a web site of the documentation, and follows its links.
#   scripts/site.sh [FOLDER]     (default: build/site); open FOLDER/index.html, or serve it for the
#                                search: python3 -m http.server -d FOLDER
# The contents page docs/README.md gives the order. Needs Debian's package mkdocs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
site=${1:-$build/site}
case $site in /*) ;; *) site=$PWD/$site ;; esac
command -v mkdocs >/dev/null || die "mkdocs is missing: apt-get install --no-install-recommends mkdocs"
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
"$root/scripts/check_docs.py" --stage "$staged/pages" "$site"
PYTHONPATH=$root/scripts mkdocs build --quiet --strict --clean --config-file "$staged/pages.yml"
"$root/scripts/check_docs.py" --site "$site"
say "the site is in $site"
