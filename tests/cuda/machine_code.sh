#!/usr/bin/env bash
# The update kernels' machine code, without a GPU: compiled for every architecture without a warning, nothing spilled to memory, and all streams
# in 16-byte accesses. One line a fact. Exit 77 (skipped) where nvcc is not.
#   tests/cuda/machine_code.sh
# Environment: NVCC, STARLING_INCLUDES (folders of fmt's and the JSON library's headers, where the compiler does not find them; divided by ;).
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
nvcc=${NVCC:-$(command -v nvcc || true)}
[ -n "$nvcc" ] || for candidate in "${CUDA_HOME:-/usr/local/cuda}"/bin/nvcc /usr/local/cuda*/bin/nvcc; do
  [ -x "$candidate" ] && nvcc=$candidate && break
done
if [ -z "$nvcc" ]; then
  echo "skipped: there is no nvcc (the CUDA toolkit's compiler), so nothing can be said of the machine code"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
wrong() {
  echo "WRONG: $*"
  status=1
}

flags=(-std=c++20 --expt-relaxed-constexpr -fmad=false -Werror all-warnings -DFMT_USE_CONSTEXPR=1 "-I$root")
IFS=';' read -ra folders <<<"${STARLING_INCLUDES:-}"
for folder in "${folders[@]}"; do [ -d "$folder" ] && flags+=(-isystem "$folder"); done
source=$root/kernels/cuda/update.cu
known=$("$nvcc" --list-gpu-code)

for architecture in 80 90 100; do
  if ! grep -qx "sm_$architecture" <<<"$known"; then
    echo "sm_$architecture: this nvcc does not know it"
    continue
  fi
  if ! "$nvcc" "${flags[@]}" -arch=sm_$architecture -Xptxas -v -cubin "$source" -o "$work/code" >"$work/log" 2>&1; then
    grep -E "error|warning" "$work/log" | head -5
    wrong "sm_$architecture: update.cu does not compile without a warning"
    continue
  fi
  awk -v architecture="sm_$architecture" '
    /Compiling entry function/ { split($0, quoted, "\x27"); name = quoted[2]; update = name ~ /update_kernel/; kernels += update }
    update && /bytes stack frame/ { if ($1 + $5 + $9 != 0) { print "  " name ": " $0; spilled++ } }
    update && /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); n = substr($0, RSTART + 5, RLENGTH - 5) + 0; if (n > most) most = n; if (!least || n < least) least = n
      if (match($0, /[0-9]+ bytes smem/) && substr($0, RSTART) + 0 > shared) shared = substr($0, RSTART) + 0 }
    END {
      if (!kernels || !most) { print architecture ": no update kernel in the compiler\x27s report"; exit 1 }
      printf "%s: %d update kernels, %d of them spill or use local memory, %d to %d registers a thread, at most %d bytes of shared memory a block\n",
        architecture, kernels, spilled, least, most, shared
      exit spilled > 0
    }' "$work/log" || wrong "sm_$architecture: see above"
done

if ! "$nvcc" "${flags[@]}" -arch=compute_80 -ptx "$source" -o "$work/ptx" >"$work/log" 2>&1; then
  head -5 "$work/log"
  wrong "PTX: update.cu does not compile without a warning"
else
  # Per kernel: what its step reads and writes, from its name; accesses by base address, those of the step'\''s scalars left out.
  awk '
    function begin(line) {
      match(line, /_Z[A-Za-z0-9_]+/); name = substr(line, RSTART, RLENGTH)
      inside = name ~ /update_kernel/
      wide_generic = narrow_generic = wide_loads = narrow_loads = flags = wide_stores = narrow_stores = low_stores = 0; delete scalars
      if (!inside) return
      kernels++
      type = name ~ /StepId/ ? "d" : "f"
      reads = writes = -1
      if (name ~ /SgdStepI.Lb0E/) reads = writes = 0
      if (name ~ /SgdStepI.Lb1E/) reads = writes = 1
      if (name ~ /8AdamStep/) reads = writes = 2
      if (name ~ /AccumPhaseE0E/) { reads = 2; writes = 1 }
      if (name ~ /AccumPhaseE1E/) { reads = 3; writes = 1 }
      if (name ~ /AccumPhaseE2E/) { reads = 3; writes = 3 }
      if (name ~ /AccumPhaseE3E/) { reads = 2; writes = 2 }
      terms = name ~ /ELi0ELb/ ? 0 : name ~ /ELi1ELb/ ? 1 : name ~ /ELi2ELb/ ? 2 : -1
      aligned = name !~ /ELin1ELb0E/
    }
    function finish() {
      if (!inside) return
      inside = 0
      if (reads < 0) { bad("its step is not known here"); return }
      if (!aligned) {
        unaligned++
        if (wide_loads + wide_stores > 0) bad("16-byte accesses to any address")
        return
      }
      streams = 2 + reads + (terms < 0 ? 1 : terms)
      packs = streams <= 3 && type == "f" ? 4 : 2
      if (terms < 0) {  # the neighbours by pointers from memory: loads of the generic address space, in a loop
        streams--
        narrow_loads = narrow_generic ? 99 : wide_generic >= packs ? 2 : 98
      }
      if (wide_loads != packs * streams) bad("16-byte loads: " wide_loads ", not " packs " for each of " streams " streams")
      if (narrow_loads > 2) bad("narrow loads: " narrow_loads ", not the 2 of the control alone")
      if (flags != packs) bad("loads of decay entries: " flags ", not " packs)
      if (wide_stores < packs * (1 + writes) || wide_stores % (1 + writes) != 0) bad("16-byte stores: " wide_stores)
      if (narrow_stores > 0) bad("narrow stores: " narrow_stores)
      if (low_stores < 2 * packs) bad("low-precision stores of a whole pack: " low_stores)
      fixed++
      loads += wide_loads
    }
    function bad(what) { print "  " name ": " what; failures++ }
    /\.entry / { finish(); begin($0) }
    !inside { next }
    /ld\.param\.u64/ && /_param_1\]/ { match($0, /%rd[0-9]+/); scalars[substr($0, RSTART, RLENGTH)] = 1 }
    /cvta\.to\.global\.u64/ { split($0, part, /[ \t,;]+/); for (i in part) if (part[i] == "cvta.to.global.u64" && (part[i + 1 + 0 + 1] in scalars)) scalars[part[i + 1]] = 1 }
    /ld\.global/ {
      match($0, /\[%rd[0-9]+/); base = substr($0, RSTART + 1, RLENGTH - 1)
      if (base in scalars) next
      if ($0 ~ /ld\.global(\.nc)?\.(v4\.[fbu]32|v2\.[fbu]64)/) wide_loads++
      else if ($0 ~ /ld\.global(\.nc)?\.u8/) flags++
      else narrow_loads++
    }
    /[ \t]ld\.[vfbu]/ { if ($0 ~ /ld\.(v4\.[fbu]32|v2\.[fbu]64)/) wide_generic++; else narrow_generic++ }
    /st\.global/ {
      if ($0 ~ /st\.global\.(v4\.[fbu]32|v2\.[fbu]64)/) wide_stores++
      else if ($0 ~ (type == "f" ? "st\\.global\\.(v4\\.[bu]16|v2\\.[bu]32|[bu]64)" : "st\\.global\\.(v2\\.[bu]16|[bu]32)")) low_stores++
      else narrow_stores++
    }
    END {
      finish()
      if (!fixed || !unaligned) { print "PTX: no update kernel found"; exit 1 }
      printf "PTX: %d kernels load and store every stream 16 bytes at a time (%d loads), %d more take odd addresses, %d wrong\n", fixed, loads,
        unaligned, failures
      exit failures > 0
    }' "$work/ptx" || wrong "PTX: see above"
fi
exit $status
