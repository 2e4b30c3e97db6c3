#!/usr/bin/env bash
# What nvcc makes of the kernels, without a GPU. In PTX: updates move all streams in 16-byte
# accesses; peer memory's handshakes are ordered for the whole system. In the plug-in's machine code,
# where it is built and a disassembler is here (cuobjdump with nvdisasm: the toolkit's, or the Python
# wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm): no kernel keeps anything on a stack (of
# which ptxas also warns when the plug-in is built). One line a fact. Exit 77 (skipped) where nvcc
# is not.
#   tests/cuda/machine_code.sh [LIBRARY]   the plug-in, libstarling_cuda.so
# Environment: NVCC, CUOBJDUMP, STARLING_INCLUDES (folders of fmt's and the JSON library's headers,
# where the compiler does not find them; divided by ;),
#   STARLING_CUDA_ARCHITECTURES (as of the build: "90-real;100-real"; PTX is made for the
#   last of sm_80, sm_90 and sm_100 in it, or that nvcc knows).
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

flags=(-std=c++20 --expt-relaxed-constexpr -Werror all-warnings -DFMT_USE_CONSTEXPR=1 "-I$root")
IFS=';' read -ra folders <<<"${STARLING_INCLUDES:-}"
for folder in "${folders[@]}"; do [ -d "$folder" ] && flags+=(-isystem "$folder"); done
known=$("$nvcc" --list-gpu-code | grep -oxE 'sm_(80|90|100)' | cut -d_ -f2)
architecture=$(grep -xE "$(grep -oE '(80|90|100)-real' <<<"${STARLING_CUDA_ARCHITECTURES:-}" | cut -d- -f1 | paste -sd'|')" <<<"$known" | sort -n | tail -1)
architecture=${architecture:-$(sort -n <<<"$known" | tail -1)}

# All that is looked at is compiled beside each other: $work/NAME.ptx.
printf '%s\n' "$root"/kernels/cuda/{operations/update,operations/batch_norm,runtime/peer}.cu >"$work/sources"
xargs -P "$(nproc)" -I{} bash -c '
  from=$1 to=$2/$(basename "$1" .cu); shift 2
  [ "${from##*/}" != update.cu ] || set -- "$@" -fmad=false  # as the plug-in does
  "$@" "$from" -o "$to.ptx" >"$to.log" 2>&1 || rm -f "$to.ptx"' _ {} "$work" "$nvcc" "${flags[@]}" -ptx -arch=sm_"$architecture" <"$work/sources"
while read -r source; do
  name=$(basename "$source" .cu)
  [ -f "$work/$name.ptx" ] || wrong "sm_$architecture: $name.cu does not compile without a warning: $(grep -E 'error|warning' "$work/$name.log" | head -5)"
done <"$work/sources"

find_disassembler() {
  local folder
  for folder in "$(dirname "$nvcc")" $(python3 -c 'import site; print(*site.getsitepackages(), site.getusersitepackages())' 2>/dev/null); do
    for folder in "$folder" "$folder"/nvidia/*/bin "$folder"/triton/backends/nvidia/bin; do
      if [ -x "$folder/cuobjdump" ] && [ -x "$folder/nvdisasm" ]; then
        echo "$folder/cuobjdump"
        return
      fi
    done
  done
  if command -v nvdisasm >/dev/null; then command -v cuobjdump; fi
}
cuobjdump=${CUOBJDUMP:-$(find_disassembler || true)}

library=${1:-}
if [ ! -f "$library" ]; then
  echo "machine code: not looked at, the plug-in is not built"
elif [ -z "$cuobjdump" ]; then
  echo "machine code: not looked at, there is no cuobjdump with nvdisasm here"
elif ! PATH=$(dirname "$cuobjdump"):$PATH "$cuobjdump" -res-usage "$library" >"$work/usage" 2>"$work/log"; then
  echo "machine code: not looked at, $cuobjdump fails: $(head -1 "$work/log")"
else
  # For sm_100 ptxas has too few registers, by up to 56 bytes, for batch norms' loads under way and
  # for one loss in fp64, where for sm_90 they suffice: not worth a change before such a GPU has
  # measured it.
  awk '
    /^arch = / { architecture = $NF }
    / Function / { name = $NF }
    /REG:/ {
      kernels++
      match($0, / STACK:[0-9]+/); stack = substr($0, RSTART + 7, RLENGTH - 7) + 0
      known = architecture == "sm_100" && name ~ /7momentsI|13gradient_sumsI|14input_gradientI|18cross_entropy_rowsILi32EdE/ && stack <= 56
      if (stack && !known || $0 !~ / LOCAL:0 /) { print "  " architecture " " name $0; failures++ }
      match($0, /REG:[0-9]+/); n = substr($0, RSTART + 4, RLENGTH - 4) + 0; if (n > most) most = n
    }
    END {
      printf "machine code: %d kernels, %d of them spill or use local memory, at most %d registers a thread\n", kernels, failures, most
      exit failures > 0 || !kernels
    }' "$work/usage" || wrong "machine code: see above"
fi

if [ -f "$work/update.ptx" ]; then
  # Loads from the first table entry on: before it are the step's scalars, and the control.
  awk '
    # What an update kernel step reads and writes, from its name. -1 where the step is not known
    # here.
    function facts(name) {
      type = name ~ /StepId/ ? "d" : "f"
      reads = writes = -1
      if (name ~ /SgdStepI.Lb0E/) reads = writes = 0
      if (name ~ /SgdStepI.Lb1E/) reads = writes = 1
      if (name ~ /8AdamStep|NoiseCorrectedAdamStep/) reads = writes = 2
      if (match(name, /RmspropStepI.Lb[01]ELb[01]E/)) reads = writes = 1 + substr(name, RSTART + 15, 1) + substr(name, RSTART + 19, 1)
      if (name ~ /AdagradStepI|LionStepI/) reads = writes = 1
      if (name ~ /NadamStepI|LambStepI|MuonStepI|ScheduleFreeAdamStepI/) reads = writes = 2
      if (name ~ /AdafactorStepI/) { reads = 1; writes = 0 }
      if (name ~ /AdafactorSquareStepI|AdafactorQuotientStepI/) reads = writes = 0
      if (name ~ /LarsStepI.Lb0E/) reads = writes = 0
      if (name ~ /LarsStepI.Lb1E/) reads = writes = 1
      if (match(name, /LinearStepI.Li[0-9]ELi[0-9]E/)) { reads = substr(name, RSTART + 14, 1) + 0; writes = substr(name, RSTART + 18, 1) + 0 }
      if (name ~ /AccumPhaseE0E/) { reads = 2; writes = 1 }
      if (name ~ /AccumPhaseE1E/) { reads = 3; writes = 1 }
      if (name ~ /AccumPhaseE2E/) { reads = 3; writes = 3 }
      if (name ~ /AccumPhaseE3E/) { reads = 2; writes = 2 }
      # Messages of codes (in2) are read 4 bytes at a time, where other streams are read 16: beside a
      # pack of codes one or two numbers of its block, in three loops that are unrolled as that over
      # neighbours (each loads addresses and weights of its own where the compiler unrolls all: for
      # sm_100).
      encoded = name ~ /ELin2ELb/
      terms = name ~ /ELi0ELb|ELin2ELb/ ? 0 : name ~ /ELi1ELb/ ? 1 : name ~ /ELi2ELb/ ? 2 : -1
      aligned = name !~ /ELin1ELb0E/
      streams = 2 + reads + (terms < 0 ? 1 : terms)
      packs = streams <= 3 && type == "f" ? 4 : 2
      wide = packs * streams
      # A step that takes no notice of weight decay needs no table. What it loads of the step then
      # cannot be told from the streams.
      blind = name ~ /AdafactorSquareStepI|AdafactorQuotientStepI/
      # Of a rule that measures layers: the layer of a pack, and its factor.
      factors = name ~ /LarsStepI|LambStepI|MuonStepI|AdafactorStepI/ ? 2 * packs : 0
    }
    function begin(line) {
      match(line, /_Z[A-Za-z0-9_]+/); name = substr(line, RSTART, RLENGTH)
      inside = name ~ /update_kernel/
      wide_loads = narrow_loads = flags = wide_stores = narrow_stores = low_stores = 0
      if (!inside) return
      kernels++
      facts(name)
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
      if (blind) {
        if (wide_loads < wide) bad("16-byte loads: " wide_loads ", not " packs " for each of " streams " streams")
        if (flags) bad("loads of table entries: " flags ", though none are needed")
        if (wide_stores < packs || narrow_stores > 0) bad("stores: " wide_stores " of 16 bytes, " narrow_stores " narrow ones")
        fixed++
        return
      }
      # the loop over neighbours: two bodies, and what is left
      unrolled = terms < 0 && wide_loads == wide + 2 * packs
      if (wide_loads != wide && !unrolled) bad("16-byte loads: " wide_loads ", not " packs " for each of " streams " streams")
      if (narrow_loads > (encoded ? 18 : terms < 0 ? 6 : 0) + 21 * encoded * packs + factors) bad("narrow loads: " narrow_loads ", not the address and the weight of a neighbour (and the factors of layers) alone")
      if (flags != packs) bad("loads of table entries: " flags ", not " packs)
      if (wide_stores < packs * (1 + writes) || wide_stores % (1 + writes) != 0) bad("16-byte stores: " wide_stores)
      if (narrow_stores > 0) bad("narrow stores: " narrow_stores)
      if (low_stores < 2 * packs) bad("low-precision stores of a whole pack: " low_stores)
      fixed++
      loads += wide_loads
    }
    function bad(what) { print "  " name ": " what; failures++ }
    /\.entry / { finish(); begin($0) }
    !inside { next }
    /[ \t]ld\.(global|[vfbu])/ {
      if ($0 ~ /\.u8[ \t]/) flags++
      if (!(flags || blind && aligned) || $0 ~ /\.u8[ \t]/) next
      if ($0 ~ /\.(v4\.[fbu]32|v2\.[fbu]64)[ \t]/) wide_loads++
      else narrow_loads++
    }
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
    }' "$work/update.ptx" || wrong "PTX: see above"
fi

# Peer memory's counters: signals release to the whole system behind a fence, and waits acquire from
# it.
if [ -f "$work/peer.ptx" ]; then
  awk '
    /\.entry / { signal = $0 ~ /signal_kernel/; fenced = 0 }
    /membar\.sys|fence\.(sc|acq_rel)\.sys/ { fenced = 1 }
    /st\.release\.sys\.u32/ { if (!fenced) loose++; if (signal) signals++; else words++ }
    /ld\.acquire\.sys\.u32/ { if (!signal) waits++ }
    /st\.global\.u32|ld\.(volatile|relaxed)/ && signal { loose++ }
    END {
      if (signals != 1 || waits < 2 || words < 2 || loose) { print "PTX: " signals + 0 " system-wide releases of a signal, " waits + 0 " acquires of a wait, " loose + 0 " without a fence"; exit 1 }
      print "PTX: peer.cu signals by st.release.sys behind a fence and waits by ld.acquire.sys"
    }' "$work/peer.ptx" || wrong "PTX of peer.cu: see above"
fi

# What the last block of a batch norm reads of other blocks' results lies behind the counter's
# increment, between fences, and is not read as constant data.
if [ -f "$work/batch_norm.ptx" ]; then
  awk '
    function finish() {
      if (!first) return
      firsts++
      if (arrives == 1 && fences >= 2 && !late) return
      print "  " name ": increments a counter " arrives " times, " fences " fences, and " late " loads as of constant data behind the counter"
      failures++
    }
    /\.entry / {
      finish(); match($0, /_Z[A-Za-z0-9_]+/); name = substr($0, RSTART, RLENGTH)
      first = name ~ /7momentsI|13gradient_sumsI/
      arrives = fences = late = 0
    }
    /membar\.gl|fence\.(sc|acq_rel)\.gpu/ { fences++ }
    /atom\.(global\.)?(relaxed\.gpu\.)?(global\.)?inc/ { arrives++ }
    /ld\.global\.nc/ && arrives { late++ }
    END {
      finish()
      printf "PTX: in %d kernels of batch_norm.cu the last block reads behind the counter, %d wrong\n", firsts, failures
      exit failures > 0 || !firsts
    }' "$work/batch_norm.ptx" || wrong "PTX of batch_norm.cu: see above"
fi
exit $status
