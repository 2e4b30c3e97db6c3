#!/usr/bin/env bash
# Packs the libraries that Starling builds on, and cudnn-frontend's headers, into a relocatable prefix: for a machine that has a compiler,
# CMake and the CUDA toolkit, but on which nothing can be installed. scripts/pack_gpu.sh makes an archive with which nothing is built there either.
#   scripts/pack_deps.sh DEST [ARCHIVE.tgz]
# Run it on Debian 12 (or on what the other machine can run libraries of); ARCHIVE.tgz gets DEST in one file of about 20 MB.
# There: `source DEST/env.sh`, then scripts/gpu_check.sh, or configure with -DCMAKE_PREFIX_PATH="$STARLING_DEPS/usr".
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pack_lib.sh"

[ $# = 1 ] || [ $# = 2 ] || die "usage: scripts/pack_deps.sh DEST [ARCHIVE.tgz]"
archive=${2:-}
case $archive in '' | /*) ;; *) archive=$PWD/$archive ;; esac
packages=(openmpi-bin openmpi-common libopenmpi3 libopenmpi-dev libpmix2 libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 libevent-2.1-7
  libdnnl2 libdnnl-dev libfmt9 libfmt-dev libspdlog1.10 libspdlog-dev zlib1g zlib1g-dev libjpeg62-turbo libjpeg62-turbo-dev libpng16-16
  libpng-dev libxxhash0 libxxhash-dev nlohmann-json3-dev libcli11-dev doctest-dev)

command -v apt-get >/dev/null || die "apt-get is missing: this script takes the libraries from Debian's packages"
if [ -e "$1" ] && [ -n "$(ls -A "$1")" ]; then die "$1 is not empty; name a new folder"; fi
mkdir -p "$1/debs"
dest=$(cd "$1" && pwd)
say "downloading ${#packages[@]} packages"
apt-get update -qq || warn "apt-get update failed; going on with the package lists that are there"
(cd "$dest/debs" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >/dev/null) ||
  die "apt-get could not download ${packages[*]}"
for deb in "$dest"/debs/*.deb; do dpkg -x "$deb" "$dest"; done
lib=$dest/usr/lib/x86_64-linux-gnu

# Not needed to build or run: other languages' bindings, static libraries, documents, Open MPI's own inner headers.
rm -rf "$dest/debs" "$dest"/usr/lib/*/fortran "$lib"/lib{mpi_java,mpi_mpifh,mpi_usempi,oshmem,ompitrace}* "$dest"/etc/alternatives \
  "$dest"/usr/share/{doc,man,lintian,perl5} "$lib"/openmpi/include/openmpi/{opal,orte,oshmem}
find "$dest" -name '*.a' -delete

# Shared libraries that the packed ones need and a plain system may lack. Where something is compiled, GCC's own are.
of_gcc() { of_base "$1" && [[ "$1" != libz.* ]]; }
leave_out=(of_gcc)
mapfile -t packed < <(find "$dest/usr/bin" "$lib" -type f \( -name '*.so*' -o -perm -u+x \))
LD_LIBRARY_PATH=$lib copy_needed "$lib" "${packed[@]}"

for name in mpirun mpiexec; do ln -sf orterun "$dest/usr/bin/$name"; done
# The compiler wrapper looks for a text file that is called as it is.
for name in mpicc mpicxx; do
  ln -sf opal_wrapper "$dest/usr/bin/$name"
  data=$dest/usr/share/openmpi/$name-wrapper-data.txt
  [ -e "$data" ] || cp "$dest/usr/share/openmpi/$name.openmpi-wrapper-data.txt" "$data"
done
for name in libmpi.so libmpi_cxx.so; do ln -sf "openmpi/lib/$name" "$lib/$name"; done
mkdir -p "$dest/etc/openmpi"
[ -e "$dest/etc/openmpi/openmpi-mca-params.conf" ] || touch "$dest/etc/openmpi/openmpi-mca-params.conf"

"$root/scripts/get_cudnn_frontend.sh" "$dest"

cat >"$dest/env.sh" <<'ENV'
# Sourced: finds the libraries of this folder, wherever it lies.
STARLING_DEPS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export STARLING_DEPS
export PATH=$STARLING_DEPS/usr/bin:$PATH
starling_lib=$STARLING_DEPS/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$starling_lib:$starling_lib/openmpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LIBRARY_PATH=$starling_lib:$starling_lib/openmpi/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
export CPATH=$STARLING_DEPS/usr/include:$starling_lib/openmpi/include${CPATH:+:$CPATH}
export CMAKE_PREFIX_PATH=$STARLING_DEPS/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
export OPAL_PREFIX=$STARLING_DEPS/usr PMIX_PREFIX=$STARLING_DEPS/usr
export PMIX_MCA_mca_base_component_path=$starling_lib/pmix2/lib/pmix
export OMPI_MCA_mca_base_component_path=$starling_lib/openmpi/lib/openmpi3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
unset starling_lib
ENV
say "packed $(du -sh "$dest" | cut -f1) into $dest; use it with: source $dest/env.sh"
if [ -n "$archive" ]; then
  tar -C "$(dirname "$dest")" -c "$(basename "$dest")" | gzip -9 >"$archive"
  say "archive: $archive, $(du -h "$archive" | cut -f1)"
fi
