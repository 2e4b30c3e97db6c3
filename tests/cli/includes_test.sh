#!/usr/bin/env bash
# Which folder includes which: the top folders, and the rooms of apps in the order that
# docs/architecture.md gives them, so that no rings come about.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# includes WITHIN: a line "FROM TO FILE" for each folder of WITHIN (a path that ends with /, or
# nothing) whose FILE includes what lies in another one; "." is what lies in WITHIN itself.
includes() {
  (cd "$tree" && grep -roE --include='*.h' --include='*.cuh' --include='*.cpp' --include='*.cu' "^#include \"$1[^\"]+\"" "${1:-.}") |
    sed -E 's#^\./##; s#(.*):\#include "(.*)"#\1 \2#' | awk -v within="$1" '
      function folder(path) { path = substr(path, length(within) + 1); return path ~ "/" ? substr(path, 1, index(path, "/") - 1) : "." }
      { from = folder($1); to = folder($2); if (from != to) print from, to, $1 }'
}
# in_order WITHIN FOLDER...: each includes only those before it.
in_order() {
  local within=$1
  shift
  includes "$within" | awk -v within="$within" -v folders="$*" '
    BEGIN { count = split(folders, name); for (i = 1; i <= count; ++i) place[name[i]] = i }
    !($1 in place) || !($2 in place) { print $3 ": " within $1 " or " within $2 " has no place in docs/architecture.md"; bad = 1; next }
    place[$2] > place[$1] { print $3 ": " within $1 " includes " within $2 ", which stands above it"; bad = 1 }
    { ++seen }
    END { exit bad || !seen }'
}
never() { # FROM TO: no file of one top folder includes the other
  ! includes "" | grep "^$1 $2 "
}
folders() { # the source tree's folders alone, so that tests and build folders are left out
  rm -rf "$work/tree" && mkdir "$work/tree"
  cp -r "$root"/{core,kernels,layers,topology,comm,apps} "$work/tree"
}

export tree=$work/tree
export -f includes in_order
folders
rooms() { sed -nE "s#^$1 +##p" "$root/docs/architecture.md"; } # FOLDER/: its rooms in their order
for folder in apps/ apps/data/ apps/training/; do
  verify "docs/architecture.md gives the order of rooms in $folder" test "$(rooms $folder | wc -w)" -gt 2
  # shellcheck disable=SC2046
  verify "rooms of $folder use those before them" in_order $folder $(rooms $folder)
done
# "." has what the build makes.
verify "top folders use those below them" in_order "" . core kernels layers topology comm apps
for pair in "comm layers" "topology kernels" "topology layers"; do
  # shellcheck disable=SC2086
  verify "no include: $pair" never $pair
done
# A ring, and a room that has no place, are told.
echo '#include "apps/training/config/train_config.h"' >>"$tree/apps/training/device/device.h"
# shellcheck disable=SC2046
check "a ring" 1 "^apps/training/device/device.h: apps/training/device includes apps/training/config, which stands above it" in_order apps/training/ $(rooms apps/training/)
folders
mkdir "$tree/apps/training/cellar"
echo '#include "apps/training/trainer.h"' >"$tree/apps/training/cellar/cellar.h"
# shellcheck disable=SC2046
check "a room without a place" 1 "cellar/cellar.h: apps/training/cellar or apps/training/\. has no place" in_order apps/training/ $(rooms apps/training/)
finish
