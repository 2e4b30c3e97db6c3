# Sourced by bash, from anywhere: makes what scripts/pack_gpu.sh has packed usable, wherever it was
# unpacked, and finds CUDA's libraries, which are not in the archive: in LD_LIBRARY_PATH, the
# toolkit's folders and the loader's own, or among the Python packages of the python3 in the PATH.
# They come from one of these two places where it has all. One line on stderr says which were taken,
# and what is missing. Environment: STARLING_CUDA_FROM=python takes the Python packages first. What
# is set already of OMPI_MCA_* stays. Sets PATH, LD_LIBRARY_PATH, STARLING_BUILD, STARLING_COMMIT,
# and what Open MPI needs to run from another folder than its own.

# All that the loader finds without being told.
starling_system_libraries() {
  {
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -nE 's/^.*=> (.*)$/\1/p'
    ls -d /lib/x86_64-linux-gnu/*.so* /usr/lib/x86_64-linux-gnu/*.so* /lib64/*.so* /usr/lib64/*.so* /usr/lib/*.so*
  } 2>/dev/null
}

# The folders of CUDA's toolkit, and those that the user has named.
starling_toolkit_folders() {
  local nvcc
  tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
  if nvcc=$(command -v nvcc); then
    nvcc=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    printf '%s\n' "$nvcc"/{lib64,targets/x86_64-linux/lib,lib}
  fi
  ls -d ${CUDA_HOME:+"$CUDA_HOME"/lib64} /usr/local/cuda/lib64 /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib 2>/dev/null
}

# The folders of NVIDIA's Python packages: one for all that come with CUDA 13, one for each other.
starling_python_folders() {
  python3 -c '
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
for folder in (spec.submodule_search_locations or []) if spec else []:
    here = glob.escape(folder)
    print("\n".join(sorted(glob.glob(here + "/cu[0-9]*/lib")) + sorted(glob.glob(here + "/*/lib"))))
' 2>/dev/null
}

# starling_look LIST SYSTEM: of the libraries in the file LIST, those that the folders on stdin
# have, as "LIBRARY FOLDER" lines; else "LIBRARY -" for those that the text SYSTEM names.
starling_look() {
  local folders folder library wheel
  mapfile -t folders
  while read -r library wheel; do
    for folder in "${folders[@]}"; do
      if [ -n "$folder" ] && [ -e "$folder/$library" ]; then
        echo "$library $folder"
        continue 2
      fi
    done
    if grep -q "/$library\$" <<<"$2"; then echo "$library -"; fi
  done <"$1"
}

starling_gpu_env() { # ROOT
  local top=$1 lib=$1/build-gpu/lib system paths folder file version glibc here toolkit python first second all taken from missing cuda old
  if [ ! -f "$lib/cuda_libraries" ]; then
    echo "error: $lib/cuda_libraries is missing: source gpu_env.sh where the archive of scripts/pack_gpu.sh was unpacked" >&2
    return 2
  fi
  STARLING_COMMIT=$(cat "$top/commit")
  export STARLING_COMMIT STARLING_BUILD=$top/build-gpu
  case :$PATH: in *:"$STARLING_BUILD/bin":*) ;; *) export PATH=$STARLING_BUILD/bin:$PATH ;; esac
  system=$(starling_system_libraries)

  glibc=$(cat "$lib/needs_glibc")
  here=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')
  if [ -n "$here" ] && [ "$(printf '%s\n' "$glibc" "$here" | sort -V | head -1)" != "$glibc" ]; then
    echo "error: this system's C library is glibc $here, and the packed programs need $glibc: pack them on an older system, or build here" >&2
  fi
  # Of GCC's libraries and zlib, those that this system lacks or has older than is needed: its own
  # programs, as Python, keep theirs.
  paths=$lib
  for folder in "$lib"/base/*/; do
    folder=${folder%/}
    file=$(grep -m1 "/${folder##*/}\$" <<<"$system")
    while [ -n "$file" ] && read -r version; do
      grep -qaF -e "$version" "$file" || file=""
    done <"$folder/needs"
    [ -n "$file" ] || paths=$paths:$folder
  done

  toolkit=$(starling_toolkit_folders | grep -vF "$lib" | starling_look "$lib/cuda_libraries" "$system")
  python=$(starling_python_folders | starling_look "$lib/cuda_libraries" "")
  first=$toolkit second=$python
  if [ "${STARLING_CUDA_FROM:-toolkit}" = python ]; then first=$python second=$toolkit; fi
  all=$(wc -l <"$lib/cuda_libraries")
  if [ "$(grep -c . <<<"$first")" = "$all" ]; then
    taken=$first
  elif [ "$(grep -c . <<<"$second")" = "$all" ]; then
    taken=$second
  else
    taken=$(printf '%s\n' "$first" "$second" | awk 'NF && !seen[$1]++')
  fi
  case $taken in
    "") from="none found" ;;
    "$toolkit") from="all of LD_LIBRARY_PATH and the toolkit" ;;
    "$python") from="all of python3's packages" ;;
    *) from="some of LD_LIBRARY_PATH and the toolkit, some of python3's packages" ;;
  esac
  missing=$(awk 'NR == FNR { have[$1] = 1; next } !($1 in have) { printf "%s%s (Python wheel %s)", (n++ ? ", " : ""), $1, $2 }' <(echo "$taken") "$lib/cuda_libraries")
  if [ -n "$taken" ] && [ -n "$missing" ]; then from=${from/all/what there is}; fi
  cuda=$(awk 'NF && $2 != "-" && !seen[$2]++ { printf "%s%s", (n++ ? ":" : ""), $2 }' <<<"$taken")
  echo "CUDA's libraries: $from${cuda:+, in ${cuda//:/, }}${missing:+; missing: $missing: put their folders into LD_LIBRARY_PATH and source gpu_env.sh again}" >&2
  paths=$paths${cuda:+:$cuda}
  # What was there before stays, behind.
  old=$(tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}" | grep . | grep -vxF -e "$(tr ':' '\n' <<<"$paths")" | grep -vF "$lib/" | paste -sd:)
  export LD_LIBRARY_PATH=$paths${old:+:$old}

  export OPAL_PREFIX=$STARLING_BUILD OPAL_LIBDIR=$lib OPAL_SYSCONFDIR=$STARLING_BUILD/etc PMIX_PREFIX=$STARLING_BUILD
  export OMPI_MCA_mca_base_component_path=$lib/openmpi PMIX_MCA_mca_base_component_path=$lib/pmix
  if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe:-1} HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS:-2}
  # One machine, perhaps without a network.
  export OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader,tcp} OMPI_MCA_btl_tcp_if_include=${OMPI_MCA_btl_tcp_if_include:-lo}
  export OMPI_MCA_oob_tcp_if_include=${OMPI_MCA_oob_tcp_if_include:-lo}
  # Sandboxes may refuse to let one process read another's memory, which Open MPI notices in the
  # middle of a run only.
  export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
  # Without ssh, mpirun ends instead of doing without other machines.
  command -v ssh >/dev/null || export OMPI_MCA_plm=${OMPI_MCA_plm:-isolated}
  # Sockets have short names: a long TMPDIR would break them.
  export OMPI_MCA_orte_tmpdir_base=${OMPI_MCA_orte_tmpdir_base:-/tmp}
}

# As a condition's command: a caller with `set -e` does not end where a search finds nothing.
if ! starling_gpu_env "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"; then return 2; fi
unset -f starling_gpu_env starling_look starling_python_folders starling_toolkit_folders starling_system_libraries
