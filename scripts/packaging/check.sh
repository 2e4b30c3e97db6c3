#!/usr/bin/env bash
# What a new user gets, in clean roots of Debian and Ubuntu, whose packages come from their mirrors:
#   scripts/packaging/check.sh deb             the .deb in Debian 12: installed, installed over an
#                                              older one, used, purged while a run is under way
#   scripts/packaging/check.sh source [SUITE]  the source tarball, from scripts/setup.sh to a trained
#                                              model: bookworm, trixie, noble; default bookworm
#   scripts/packaging/check.sh arm64 [TEST...] tests built for ARM64, run by qemu-user, and training
#                                              with NEON and with plain kernels; default: those of
#                                              core, topology, kernels and layers
# Needs root, mmdebstrap and a network. Roots are made in build/roots and removed at the end
# (STARLING_KEEP_ROOTS=1 keeps them). Ubuntu's needs /usr/share/keyrings/ubuntu-archive-keyring.gpg,
# which Debian 13 has in its package ubuntu-keyring.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$(id -u)" = 0 ] || die "clean roots need root"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing; install it: apt-get install mmdebstrap"
version=$(sed -nE 's/^project\(starling VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
roots=$build/roots
mkdir -p "$roots"
[ "${STARLING_KEEP_ROOTS:-0}" = 1 ] || trap 'rm -rf --one-file-system "$roots"' EXIT

# new_root SUITE [MMDEBSTRAP ARGUMENT...]: $clean, a new root of it.
new_root() {
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg components=main
  case $1 in noble) keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg components=main,universe ;; esac
  clean=$roots/$1
  rm -rf --one-file-system "$clean"
  say "a clean root of $1"
  mmdebstrap --quiet --variant=apt --keyring="$keys" --components=$components "${@:2}" "$1" "$clean" 2>"$clean.log" ||
    { cat "$clean.log" >&2 && die "mmdebstrap could not make a root of $1; its message stands above"; }
}
# inside COMMAND...: bash's, in that root, as root, with processes and mounts of its own that end
# with it.
inside() {
  # shellcheck disable=SC2016 # the inner shell's own
  unshare --mount --pid --fork --kill-child bash -c '
    root=$1
    mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" && mount -t tmpfs tmpfs "$root/run" || exit
    exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
      OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 STARLING_JOBS="$3" bash -euo pipefail -c "$2"' _ "$clean" "$*" "$(compile_jobs)" ||
    die "this failed in a clean root (STARLING_KEEP_ROOTS=1 keeps it): $*"
}
# The package as an older version: its libraries' files and its number are.
older() { # DEB
  local tree=$roots/older file
  rm -rf "$tree"
  dpkg-deb -R "$1" "$tree"
  while IFS= read -r file; do
    mv "$file" "${file%"$version"}0.0.1"
    ln -sf "$(basename "${file%"$version"}0.0.1")" "${file%."$version"}.0"
  done < <(find "$tree" -name "*.so.$version" -type f)
  sed -i "s/^Version: .*/Version: 0.0.1/" "$tree/DEBIAN/control"
  (cd "$tree" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
  dpkg-deb -b "$tree" "$2" >/dev/null
}

check_deb() {
  local deb begin
  deb=$root/packages/starling_${version}_$(dpkg --print-architecture).deb
  "$root/scripts/package.sh" deb
  if command -v lintian >/dev/null; then lintian --fail-on error,warning "$deb"; fi
  new_root bookworm
  cp "$deb" "$clean/root/new.deb"
  older "$deb" "$clean/root/old.deb"
  inside 'apt-get update -qq; apt-get clean'
  begin=$(date +%s%N)
  inside 'apt-get install -qq ./root/new.deb >/dev/null
    mpirun --oversubscribe -n 2 starling-train /usr/share/starling/configs/synthetic_mlp.json --set steps=1 --output /root/first'
  say "from the .deb to the first training step: $((($(date +%s%N) - begin) / 1000000)) ms"
  # shellcheck disable=SC2016 # that shell's own
  inside 'apt-get install -qq --allow-downgrades ./root/old.deb >/dev/null
    test -n "$(find /usr/lib -name "libstarling_core.so.0.0.1")"
    apt-get install -qq ./root/new.deb >/dev/null
    test -z "$(find /usr/lib -name "libstarling_core.so.0.0.1")"
    test -z "$(dpkg -V starling | grep -v /usr/share/)"
    test "$(starling-train --version | head -1 | cut -d" " -f2)" = '"$version"'
    if ldd /usr/bin/starling-* | grep "not found"; then exit 1; fi'
  # All that the package needs goes with it: what runs has it open, or in memory.
  inside 'mpirun --oversubscribe -n 2 starling-train /usr/share/starling/configs/synthetic_mlp.json --output /root/under-way \
      --set steps=2000 --set checkpoint.every_steps=500 --set evaluate.every_steps=500 >/root/log 2>&1 & run=$!
    until grep -q "^step" /root/log; do sleep 0.1; kill -0 $run; done
    apt-get purge -qq --autoremove starling >/dev/null
    kill -0 $run
    wait $run
    test -s /root/under-way/model.safetensors
    test -z "$(find / -xdev -iname "*starling*" -not -path "/root/*" -not -path "/proc/*")"
    test -z "$(dpkg -l | grep -iE "^rc|starling")"'
  say "installed, installed over an older one, used, purged under a run that went on, nothing left"
}

check_source() {
  "$root/scripts/package.sh" source
  new_root "${1:-bookworm}"
  cp "$root/packages/starling-$version.tar.gz" "$clean/root/"
  inside 'cd /root; tar xf starling-*.tar.gz; cd starling-*/; apt-get update -qq; begin=$SECONDS
    scripts/train.sh --set steps=20 --output /root/first
    echo "==> from nothing to a trained model: $((SECONDS - begin)) s"
    build/bin/starling-train --version'
}

# A sysroot of unpacked packages, none of which runs here.
check_arm64() {
  # qemu itself writes a line of a program that a signal ends, where that test wants none.
  local isa test tests=(core topology kernels layers) without='core/mapped files: reading what*'
  [ $# = 0 ] || tests=("$@")
  for program in aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v $program >/dev/null || die "$program is missing; install it: apt-get install g++-aarch64-linux-gnu qemu-user"
  done
  new_root bookworm --variant=extract --architectures=arm64 --include="libstdc++-12-dev,libc6-dev,libgomp1,libopenmpi-dev,libdnnl-dev,libcli11-dev,\
nlohmann-json3-dev,doctest-dev,libfmt-dev,libspdlog-dev,zlib1g-dev,libzstd-dev,libjpeg-dev,libpng-dev,libxxhash-dev,libcpp-httplib-dev,libzmq3-dev"
  local triple=aarch64-linux-gnu folder=$clean/usr/lib/aarch64-linux-gnu
  build=$root/build-arm64
  export PKG_CONFIG_SYSROOT_DIR=$clean PKG_CONFIG_LIBDIR=$folder/pkgconfig:$clean/usr/share/pkgconfig
  configure -DSTARLING_TESTS=ON -DSTARLING_CUDA=OFF -DCMAKE_SYSROOT="$clean" \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_LIBRARY_ARCHITECTURE=$triple \
    -DCMAKE_C_COMPILER=$triple-gcc -DCMAKE_CXX_COMPILER=$triple-g++ -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;$clean" \
    -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
    -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
    -DMPI_C_COMPILER=MPI_C_COMPILER-NOTFOUND -DMPI_C_LIB_NAMES=mpi \
    -DMPI_C_HEADER_DIR="$folder/openmpi/include" -DMPI_mpi_LIBRARY="$folder/openmpi/lib/libmpi.so"
  compile starling-train "${tests[@]/#/test_}"
  emulated() { # PROGRAM ARGUMENT...
    say "$(basename "$1") with ${STARLING_CPU_ISA:-neon}"
    (cd "$root/tests" && qemu-aarch64 -L "$clean" "$@")
  }
  # Tests of kernels compare all instruction sets.
  for test in "${tests[@]}"; do emulated "$build/bin/test_$test" -tce="$without"; done
  for isa in neon scalar; do
    STARLING_CPU_ISA=$isa emulated "$build/bin/starling-train" "$root/configs/synthetic_mlp.json" --set steps=5 --output "$clean/$isa"
  done
}

case ${1:-} in
  deb) check_deb ;;
  source) check_source "${@:2}" ;;
  arm64) check_arm64 "${@:2}" ;;
  *) die "what is to be checked? deb, source [SUITE], arm64 [TEST...]" ;;
esac
