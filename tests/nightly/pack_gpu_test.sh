#!/usr/bin/env bash
# scripts/pack_gpu.sh and scripts/gpu_env.sh: the archive of what is built here is small enough, has
# all that it needs but CUDA's libraries, and runs in a clean folder; where this machine allows it,
# also in a root folder with nothing else in it than a shell. 77 where there is no CUDA plug-in.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
for file in "$build/lib/libstarling_cuda.so" "$build/bin/test_cuda_device" "$build/bin/test_operations" "$build/bin/starling-bench" "$build/bin/starling-topo" "$build/bin/starling-prepare" "$build/bin/starling-predict"; do
  if [ ! -f "$file" ]; then
    echo "skipped: $file is not built here"
    exit 77
  fi
done
for tool in xz readelf objdump strip ompi_info mpirun; do
  command -v $tool >/dev/null || {
    echo "skipped: $tool is not here"
    exit 77
  }
done

pack=$root/scripts/pack_gpu.sh
check "an unknown option" 2 "unknown option '--fast'" "$pack" --fast
check "a folder without programs" 2 "libstarling_cuda.so is missing" "$pack" --from-build "$work" none.tar.xz
packed() { timeout 200 "$pack" --from-build "$build" --level 0 starling-gpu.tar.xz | grep -E "starling-gpu.tar.xz: .* MiB, commit .*, for glibc 2\..* it needs .*libcudnn\.so\.9"; }
verify "the archive is made" packed
if [ ! -f starling-gpu.tar.xz ]; then finish; fi
verify "it is at most 60 MiB" test "$(stat -c %s starling-gpu.tar.xz)" -le $((60 * 1048576))
mkdir "clean folder"
verify "it unpacks" tar -C "clean folder" -xJf starling-gpu.tar.xz
top="$work/clean folder/starling-gpu"
lib=$top/build-gpu/lib
for file in gpu_env.sh commit scripts/gpu_check.sh scripts/jobs.py scripts/gpu/measure.py scripts/peers/step.py examples/pytorch/models.py configs/quickstart.json docs/checks.md build-gpu/bin/{mpirun,test_cuda_device,starling-bench,starling-topo,starling-prepare,starling-predict}; do
  verify "it has $file" test -e "$top/$file"
done

# What its files ask for.
mapfile -t elf < <(find "$top" -type f -exec sh -c '[ "$(head -c 4 "$1" | tail -c 3)" = ELF ]' _ {} \; -print)
verify "it has libraries and programs" test "${#elf[@]}" -gt 60
needed() { readelf -d "${elf[@]}" | sed -nE 's/^.*\(NEEDED\).*\[(.*)\]$/\1/p' | sort -u; }
there() { (cd "$lib" && ls ./*.so* base/*/*.so*) | xargs -n1 basename; }
allowed='^(lib(c|m|mvec|dl|rt|pthread|util|resolv)\.so\.[0-9]+|ld-linux-x86-64\.so\.2|lib(cudart|cublasLt|nvrtc|cudnn|nccl)\.so\.[0-9]+)$'
outside() { needed | grep -vxF "$(there)" | grep -vE "$allowed" || true; }
echo "not in the archive: $(needed | grep -vxF "$(there)" | tr '\n' ' ')"
verify "each library that is needed is in it, glibc's, or CUDA's" test -z "$(outside)"
verify "CUDA's are not in it" bash -c '! find "$0" -name "libcu[dbr]*" -o -name "libnv*" -o -name "libnccl*" | grep .' "$top"
verify "no file has a search path of this machine" bash -c '! readelf -d "$@" | grep -E "R(UN)?PATH" | grep -vE "\[\\\$ORIGIN(/\.\./lib)?(:\\\$ORIGIN(/\.\./lib)?)*\]"' _ "${elf[@]}"
verify "no file has debug symbols" bash -c '! readelf -S "$@" | grep -F .debug_info' _ "${elf[@]}"

# Runs in it: nothing of this shell's environment is left. The loader is told the folders alone; all
# that is not glibc's or CUDA's comes from them.
folders=$(printf '%s:' "$lib" "$lib"/base/*)
bare() { env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$folders" "$@"; }
from_elsewhere() { # PROGRAM
  bare ldd "$1" | sed -nE 's/^.* => (.*) \(0x[0-9a-f]+\)$/\1/p' | grep -vF "$top/" | grep -vE '/(lib(c|m|mvec|dl|rt|pthread|util|resolv)\.so|lib(cu|nv|nccl))' || true
}
for program in starling-train starling-bench starling-topo starling-prepare starling-predict test_operations test_cuda_device mpirun; do
  verify "$program takes its libraries from the archive" test -z "$(from_elsewhere "$top/build-gpu/bin/$program")"
done
export top folders
export -f bare
check "--version, by LD_LIBRARY_PATH alone" 0 "^starling [0-9.]+ \(commit " bare "$top/build-gpu/bin/starling-train" --version
# COMMAND...: after gpu_env.sh, from another folder, with the variables in the file `given` alone
inside() {
  local variables
  mapfile -t variables <"$work/given"
  env -i "${variables[@]}" top="$top" PATH=/usr/bin:/bin CUDA_VISIBLE_DEVICES= bash -c 'set -euo pipefail; cd /; source "$top/gpu_env.sh"; "$@"' _ "$@"
}
given() { printf '%s\n' "$@" >"$work/given"; }
export work
export -f inside
given "HOME=$work"
verify "gpu_env.sh, under set -eu" inside test -n ok
check "it sets what a check wants to know" 0 "^$top/build-gpu $(cat "$top/commit")$" inside bash -c 'echo "$STARLING_BUILD $STARLING_COMMIT"'
check "mpirun is the archive's" 0 "^$top/build-gpu/bin/mpirun" inside bash -c 'command -v mpirun'
check "a dry run of two ranks" 0 "floor|memory" inside mpirun -n 2 starling-train "$top/configs/synthetic_mlp.json" --device cuda --dry-run
check "the first call of a device, without one" 2 "^(rank 0|starling|\[).*cuda.*(driver|device|GPU|missing)" inside starling-train "$top/configs/synthetic_mlp.json" --device cuda --output "$work/run"
verify "it says so in one line, beside that of gpu_env.sh" test "$(grep -c '^\[cuda\]' .stderr)/$(grep -c . .stderr)" = 1/2
verify "the tests can be listed" inside bash -c 'test_cuda_device --list-test-cases | grep -q "^cuda/update"'

# Python packages: one folder for all of CUDA 13, others of their own.
packages=$work/site-packages/nvidia
while read -r name wheel; do
  case $name in
    libcudnn*) folder=$packages/cudnn/lib ;;
    libnccl*) folder=$packages/nccl/lib ;;
    *) folder=$packages/cu13/lib ;;
  esac
  mkdir -p "$folder" && touch "$folder/$name"
done <"$lib/cuda_libraries"
given "PYTHONPATH=$work/site-packages" STARLING_CUDA_FROM=python
check "CUDA's libraries among Python packages" 0 "^CUDA's libraries: all of python3's packages, in $packages/cu13/lib, " inside true
rm "$packages"/cudnn/lib/libcudnn*
check "not all of them" 0 "^CUDA's libraries: (all of LD_LIBRARY_PATH and the toolkit|some of LD_LIBRARY_PATH and the toolkit, some of python3's packages|what there is of python3's packages)" inside true

# An NCCL that is too old: the loader names a function, the program the library.
if grep -q '^libnccl' "$lib/cuda_libraries" && ! bare ldd "$lib/libstarling_cuda.so" | grep -q 'lib(cu|nv).*not found'; then
  mkdir old
  echo 'extern "C" int ncclGetVersion(int* version) { *version = 21805; return 0; }' | "${CXX:-c++}" -x c++ -shared -fPIC -Wl,-soname,libnccl.so.2 -o old/libnccl.so.2 -
  given "old=$work/old"
  check "an NCCL that is too old" 2 "undefined symbol: nccl[A-Za-z]+: NCCL 2\.18\.5 \($work/old/libnccl\.so\.2\) lacks it, and the plug-in was built with 2\.[0-9.]+" \
    inside bash -c 'LD_LIBRARY_PATH=$old:$LD_LIBRARY_PATH starling-train "$top/configs/synthetic_mlp.json" --device cuda --output run'
else
  echo "skipped: an NCCL that is too old (the plug-in is without NCCL, or CUDA's libraries are not here)"
fi

# A root folder with a shell and nothing else: no library of ours, no MPI, no CUDA.
bare_root=$work/root
in_root() { unshare --mount bash -c 'mount --bind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec env -i PATH=/bin "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" "$0" "$@"' "$bare_root" "$@"; }
mkdir -p "$bare_root"/{bin,dev,etc,proc,sys,tmp,lib64}
echo "root:x:0:0:root:/tmp:/bin/bash" >"$bare_root/etc/passwd" # Open MPI asks for the user's name
ln -s lib64 "$bare_root/lib" # each system's loader looks into one of them
for tool in bash cat cut dirname env getconf grep head id ls mawk paste readlink sed sort tr true wc; do
  path=$(command -v $tool) || continue
  case $tool in true) path=/bin/true ;; esac
  cp -L "$path" "$bare_root/bin/${tool/mawk/awk}"
  for library in $(ldd "$path" | grep -oE '/[^ ]+'); do cp -nL "$library" "$bare_root/lib64/"; done
done
for library in libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libutil.so.1 libresolv.so.2 libmvec.so.1; do
  cp -nL "$(dirname "$(ldd /bin/sh | grep -oE '/[^ ]*libc\.so\.6')")/$library" "$bare_root/lib64/" 2>/dev/null
done
if in_root bash -c true 2>.probe; then
  mv "$top" "$bare_root/starling-gpu"
  export bare_root
  export -f in_root
  sourced='cd /tmp && source /starling-gpu/gpu_env.sh && '
  check "in an empty root: gpu_env.sh" 0 "^CUDA's libraries: none found; missing: .*libcudart\.so\.[0-9]+ \(Python wheel nvidia-cuda-runtime.*: put their folders into LD_LIBRARY_PATH" in_root bash -c "$sourced true"
  check "in an empty root: --version" 0 "^starling [0-9.]+ \(commit " in_root bash -c "$sourced starling-train --version"
  check "in an empty root: a dry run of two ranks" 0 "floor|memory" in_root bash -c "$sourced mpirun -n 2 starling-train /starling-gpu/configs/synthetic_mlp.json --device cpu --dry-run"
  check "in an empty root: two ranks train" 0 "loss" in_root bash -c "$sourced mpirun -n 2 starling-train /starling-gpu/configs/synthetic_mlp.json --device cpu --set data.limit=512 --set data.test_limit=64 --set steps=4 --output run"
  check "in an empty root: the first call of a device" 2 "lib[a-zA-Z]+\.so\.[0-9]+: cannot open .* is missing: install it \(the Python wheel nvidia-" \
    in_root bash -c "$sourced starling-train /starling-gpu/configs/synthetic_mlp.json --device cuda --output run2"
else
  echo "skipped: a run in an empty root, which this machine does not allow ($(head -1 .probe))"
fi
finish
