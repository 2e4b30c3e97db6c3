#!/usr/bin/env bash
# Packs all that a machine with a GPU needs to run Starling and its checks into one archive, so that
# nothing is built there: programs, the CUDA plug-in, Open MPI, other libraries, scripts and
# configs. CUDA's libraries are that machine's own, of its toolkit or of Python wheels.
#   scripts/pack_gpu.sh [--from-build FOLDER] [--level N] [DEST.tar.xz]
#     DEST          default: <build>/starling-gpu.tar.xz
#     --from-build  packs what is built in this folder; else all is built, in build-gpu, for sm_90
#     --level       of xz, 0 (fast) to 9 (default)
# Environment: STARLING_BUILD (default build-gpu), STARLING_CUDA_ARCHITECTURES (90-real),
# STARLING_JOBS. The archive must stay below 60 MiB. There, in any folder:
#   tar -xJf starling-gpu.tar.xz || python3 -m tarfile -e starling-gpu.tar.xz
#   source starling-gpu/gpu_env.sh && starling-gpu/scripts/gpu_check.sh
# Its system must be as new as this one's C library (said at the end), with bash, coreutils, grep,
# sed and awk.
set -euo pipefail
export STARLING_BUILD=${STARLING_BUILD:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-gpu}
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Every system has these: the C library's parts.
of_glibc() {
  case $1 in
    libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libutil.so.* | libresolv.so.* | libanl.so.* | ld-linux*) return 0 ;;
  esac
  return 1
}

# Most systems have these, and often newer ones: programs of the system, as its Python, must not be
# given older ones.
of_base() {
  case $1 in libgcc_s.so.* | libstdc++.so.* | libgomp.so.* | libz.so.*) return 0 ;; esac
  return 1
}

# CUDA's are the other machine's own, with its driver.
of_cuda() {
  case $1 in libcu*.so* | libnv*.so* | libnccl*.so*) return 0 ;; esac
  return 1
}

# needed_libraries FILE...: the libraries that they need, all the way down, as "NAME PATH" lines;
# PATH is "missing" where the loader finds none.
needed_libraries() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" { print $1, ($3 ~ /^\// ? $3 : "missing") }' | sort -u
}

# copy_needed FOLDER FILE...: copies what these files need into FOLDER, but for glibc's, and for
# what the functions in $leave_out name. Never one that is there.
leave_out=()
copy_needed() {
  local folder=$1 name path test
  shift
  while read -r name path; do
    of_glibc "$name" && continue
    for test in "${leave_out[@]}"; do "$test" "$name" && continue 2; done
    if [ "$path" = missing ]; then
      warn "the library $name is needed, but not on this machine"
      continue
    fi
    [ -e "$folder/$name" ] || cp -L "$path" "$folder/$name"
  done < <(needed_libraries "$@")
}

is_elf() { [ "$(head -c 4 "$1" 2>/dev/null | tr '\0' ' ')" = $'\x7fELF' ]; }

limit=60 # MiB
level=9
from=""
archive=""
while [ $# -gt 0 ]; do
  case $1 in
    --from-build=* | --level=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue
      ;;
    --from-build | --level)
      [ $# -ge 2 ] || die "$1 needs a value; see --help"
      if [ "$1" = --level ]; then level=$2; else from=$2; fi
      shift
      ;;
    -h | --help)
      sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    -*) die "unknown option '$1'; see --help" ;;
    *)
      [ -z "$archive" ] || die "two archives are named: $archive and $1"
      archive=$1
      ;;
  esac
  shift
done
case $level in [0-9]) ;; *) die "--level is '$level'; it is a digit" ;; esac
for tool in xz readelf objdump strip mpirun ompi_info; do
  command -v $tool >/dev/null || die "$tool is missing; install xz-utils, binutils and openmpi-bin (scripts/setup.sh)"
done

programs=(starling-train starling-bench starling-topo starling-prepare starling-predict test_operations test_cuda_device)
if [ -n "$from" ]; then
  [ -d "$from" ] || die "--from-build: there is no folder $from"
  build=$(cd "$from" && pwd)
else
  "$root/scripts/setup.sh"
  configure -DSTARLING_CUDA=ON -DSTARLING_TESTS=ON -DSTARLING_CUDA_ARCHITECTURES="${STARLING_CUDA_ARCHITECTURES:-90-real}"
  compile starling_cuda "${programs[@]}"
fi
archive=${archive:-$build/starling-gpu.tar.xz}
case $archive in /*) ;; *) archive=$PWD/$archive ;; esac
plugin=$build/lib/libstarling_cuda.so
for file in "$plugin" "${programs[@]/#/$build/bin/}"; do
  [ -f "$file" ] || die "$file is missing; build it, or leave --from-build out"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/starling-gpu
lib=$top/build-gpu/lib
mkdir -p "$top/build-gpu/bin" "$lib/openmpi" "$lib/pmix" "$top/build-gpu/etc" "$top/build-gpu/share" "$top/docs"

# ------------------------------------------------------------------------------------- what is ours

cp "${programs[@]/#/$build/bin/}" "$top/build-gpu/bin"
cp -L "$plugin" "$lib"
cp -r "$root/scripts" "$root/configs" "$root/LICENSE" "$top"
mkdir "$top/examples"
cp -r "$root/examples/pytorch" "$top/examples" # PyTorch's side of the measurements
cp "$root/docs/gpu.md" "$root/docs/checks.md" "$top/docs"
# What the tests read beside their sources.
(cd "$root" && find tests -type f ! -name '*.cpp' ! -name '*.h' ! -name '*.cu' ! -name '*.sh' ! -name 'CMakeLists.txt' ! -path '*/__pycache__/*') |
  while read -r file; do install -D -m 644 "$root/$file" "$top/$file"; done
find "$top" -name __pycache__ -prune -exec rm -r {} +
cp "$root/scripts/gpu_env.sh" "$top/gpu_env.sh"
{ git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null || echo "${STARLING_COMMIT:-unknown}"; } >"$top/commit"

# ----------------------------------------------------------------------------------------- Open MPI

mpi_path() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p"; }
mpirun=$(readlink -f "$(command -v mpirun)")
cp "$mpirun" "$top/build-gpu/bin/orterun"
cp -L "$(dirname "$mpirun")/orted" "$top/build-gpu/bin/orted"
for name in mpirun mpiexec; do ln -s orterun "$top/build-gpu/bin/$name"; done
cp -rL "$(mpi_path pkgdatadir)" "$top/build-gpu/share/openmpi"
touch "$top/build-gpu/etc/openmpi-mca-params.conf"
# Plug-ins for networks that are not Ethernet would bring large libraries along, and warnings where
# there is no such network.
fabric='lib(ucp|ucs|uct|ucm|fabric|ibverbs|rdmacm|psm2|psm_infinipath|infinipath|oshmem|nl-3|nl-route-3|mca_common_(ucx|ofi|verbs))\.so'
for file in "$(mpi_path pkglibdir)"/mca_*.so; do
  if ! readelf -d "$file" | grep -qE "NEEDED.*\[$fabric"; then cp -L "$file" "$lib/openmpi"; fi
done
[ -e "$lib/openmpi/mca_btl_vader.so" ] || die "$(mpi_path pkglibdir) has no plug-in mca_btl_vader.so; this script knows Open MPI 4"
pmix=$(needed_libraries "$lib"/openmpi/mca_pmix_*.so | awk '/^libpmix\.so/ { print $2 }')
find "$(dirname "$(readlink -f "$pmix")")" -name 'pmix_mca_*.so' -exec cp -L {} "$lib/pmix" \;

# ---------------------------------------------------------------------------------------- libraries

leave_out=(of_cuda)
copy_needed "$lib" "$plugin" "$top"/build-gpu/bin/orte* "${programs[@]/#/$build/bin/}" "$lib"/openmpi/*.so "$lib"/pmix/*.so
mkdir "$lib/base"
for file in "$lib"/*.so*; do
  name=$(basename "$file")
  if of_base "$name"; then
    mkdir "$lib/base/$name"
    mv "$file" "$lib/base/$name/$name"
  fi
done

# Symbols go, and folders of this machine that the loader would search: each file finds the others
# by LD_LIBRARY_PATH, or relative to its own place.
mapfile -t elf < <(find "$top/build-gpu" -type f | while read -r file; do if is_elf "$file"; then echo "$file"; fi; done)
chmod u+w "${elf[@]}"
strip --strip-unneeded "${elf[@]}"
for file in "${elf[@]}"; do
  before=$(readelf -d "$file" | sed -nE 's/^.*\((RPATH|RUNPATH)\).*\[(.*)\]$/\2/p')
  after=$(tr ':' '\n' <<<"$before" | grep '^\$ORIGIN' | paste -sd: || true)
  if [ "$before" = "$after" ]; then
    continue
  elif [ -z "$after" ]; then
    printf 'file(RPATH_REMOVE FILE [==[%s]==])\n' "$file"
  else
    printf 'file(RPATH_CHANGE FILE [==[%s]==] OLD_RPATH [==[%s]==] NEW_RPATH [==[%s]==])\n' "$file" "$before" "$after"
  fi
done >"$work/rpath.cmake"
cmake -P "$work/rpath.cmake" >/dev/null

# ----------------------------------------------------------------- what the other machine must have

needed_names() { readelf -d "$@" | sed -nE 's/^.*\(NEEDED\).*\[(.*)\]$/\1/p' | sort -u; }
for name in $(needed_names "${elf[@]}"); do
  if of_glibc "$name" || of_cuda "$name" || [ -e "$lib/$name" ] || [ -e "$lib/base/$name" ]; then continue; fi
  die "the library $name is needed by a packed file, and was not packed"
done
# CUDA's libraries with the Python wheels that have them.
needed_names "$lib/libstarling_cuda.so" | while read -r name; do
  of_cuda "$name" || continue
  major=${name##*.}
  toolkit=$(readelf -d "$lib/libstarling_cuda.so" | sed -nE 's/^.*\[libcudart\.so\.([0-9]+)\]$/\1/p')
  case $name in
    libcudart*) wheel=nvidia-cuda-runtime ;;
    libcublas*) wheel=nvidia-cublas ;;
    libnvrtc*) wheel=nvidia-cuda-nvrtc ;;
    libcudnn*) wheel=nvidia-cudnn-cu$toolkit ;;
    libnccl*) wheel=nvidia-nccl-cu$toolkit ;;
    *) die "the plug-in needs $name, which no known wheel has" ;;
  esac
  case $name in libcudnn* | libnccl*) ;; *) [ "$major" -ge 13 ] || wheel=$wheel-cu$major ;; esac
  echo "$name $wheel"
done >"$lib/cuda_libraries"
# The versions that the packed files ask of each library, as "LIBRARY VERSION" lines.
objdump -p "${elf[@]}" | awk '/required from/ { sub(":", "", $3); from = $3; next } /^ +0x/ && from != "" { print from, $4; next } /^[^ ]|^$/ { from = "" }' | sort -u >"$work/versions"
for folder in "$lib"/base/*/; do
  awk -v library="$(basename "$folder")" '$1 == library { print $2 }' "$work/versions" | sort -V >"$folder/needs"
done
sed -nE 's/^.* GLIBC_([0-9.]+)$/\1/p' "$work/versions" | sort -V | tail -1 >"$lib/needs_glibc"

# -------------------------------------------------------------------------------------- the archive

mkdir -p "$(dirname "$archive")"
tar -C "$work" --owner=0 --group=0 --numeric-owner --sort=name -c starling-gpu | xz -"$level" -T0 >"$archive.part"
mv "$archive.part" "$archive"
bytes=$(stat -c %s "$archive")
say "$archive: $(awk -v b="$bytes" 'BEGIN { printf "%.1f", b / 1048576 }') MiB, commit $(cat "$top/commit"), for glibc $(cat "$lib/needs_glibc") or newer; there it needs $(awk '{ printf "%s%s", (NR > 1 ? ", " : ""), $1 }' "$lib/cuda_libraries")"
[ "$bytes" -le $((limit * 1048576)) ] || die "$archive is larger than $limit MiB"
