#!/usr/bin/env bash
# Makes packages in the folder packages/: scripts/package.sh [deb] [source]
#   deb      starling_VERSION_ARCH.deb, for CPUs, of this system's own libraries
#   source   starling-VERSION.tar.gz, of what is committed
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# -gt 0 ] || set -- deb source
out=$root/packages
mkdir -p "$out"
for what in "$@"; do
  case $what in
    deb)
      for tool in dpkg-shlibdeps file; do
        command -v $tool >/dev/null || die "$tool is missing; scripts/setup.sh dpkg-dev file installs what is needed"
      done
      build=${STARLING_BUILD:-$root/build-package}
      configure -DSTARLING_CUDA=OFF -DSTARLING_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=OFF
      compile
      (cd "$build" && cpack -G DEB -B "$out" >"$build/cpack.log" 2>&1) || {
        tail -20 "$build/cpack.log" >&2
        die "cpack failed; its whole output is in $build/cpack.log"
      }
      rm -rf "$out/_CPack_Packages"
      ls "$out"/*.deb
      ;;
    source)
      version=$(sed -nE 's/^project\(starling VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
      git -C "$root" archive --format=tar.gz --prefix="starling-$version/" -o "$out/starling-$version.tar.gz" HEAD
      ls "$out/starling-$version.tar.gz"
      ;;
    *) die "unknown package '$what'; allowed: deb, source" ;;
  esac
done
