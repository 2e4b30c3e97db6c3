#!/usr/bin/env bash
# The update kernels' (and the batch norms', and the handshakes' of peer memory) machine code, without a GPU: compiled for every architecture without a warning, nothing spilled to memory, and all streams
# in 16-byte accesses, in PTX and, where a disassembler is here (cuobjdump with nvdisasm: the toolkit's, or the Python wheels
# nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm), in the machine code too. One line a fact. Exit 77 (skipped) where nvcc is not.
#   tests/cuda/machine_code.sh
# Environment: NVCC, CUOBJDUMP, STARLING_INCLUDES (folders of fmt's and the JSON library's headers, where the compiler does not find them; divided by ;),
#   STARLING_CUDA_ARCHITECTURES (as of the build: "90-real;100-real"; default: all that the plug-in is built for).
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
source=$root/kernels/cuda/operations/update.cu
known=$("$nvcc" --list-gpu-code)
# Of sm_80, sm_90 and sm_100 those that the build compiles for.
architectures=$(grep -oE '(80|90|100)-real' <<<"${STARLING_CUDA_ARCHITECTURES:-}" | grep -oE '^[0-9]+' | sort -nu | tr '\n' ' ')
architectures=${architectures:-80 90 100}

# compiled ARCHITECTURE SOURCE FLAG...: the machine code in $work/code, the PTX in $work/keep/*.ptx, what the compiler says in $work/log.
compiled() {
  local architecture=$1 from=$2
  shift 2
  rm -rf "$work/keep" && mkdir "$work/keep"
  "$nvcc" "$@" -arch=sm_"$architecture" -Xptxas -v -cubin --keep --keep-dir "$work/keep" "$from" -o "$work/code" >"$work/log" 2>&1 || {
    grep -E "error|warning" "$work/log" | head -5
    wrong "sm_$architecture: $(basename "$from") does not compile without a warning"
    return 1
  }
}

# An awk function: what an update kernel's step reads and writes, from its name. -1 where the step is not known here.
facts='
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
    # Messages of 8-bit codes (in2) are read 4 bytes at a time, where other streams are read 16: beside a pack of codes one or two numbers of
    # its block, in two loops that are unrolled as that over neighbours
    # (each loads addresses and weights of its own where the compiler unrolls both: for sm_100).
    encoded = name ~ /ELin2ELb/
    terms = name ~ /ELi0ELb|ELin2ELb/ ? 0 : name ~ /ELi1ELb/ ? 1 : name ~ /ELi2ELb/ ? 2 : -1
    aligned = name !~ /ELin1ELb0E/
    streams = 2 + reads + (terms < 0 ? 1 : terms)
    packs = streams <= 3 && type == "f" ? 4 : 2
    # An fp32 gradient is loaded in two places: where none may lie in low precision, and where others may.
    wide = packs * (streams + (type == "f"))
    low = type == "f" ? packs : 0
    # A step that takes no notice of weight decay needs no table in fp64. What it loads of the step then cannot be told from the streams.
    blind = type == "d" && name ~ /AdafactorSquareStepI|AdafactorQuotientStepI/
    # Of a rule that measures layers: the layer of a pack, and its factor.
    factors = name ~ /LarsStepI|LambStepI|MuonStepI|AdafactorStepI/ ? 2 * packs : 0
  }'

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
[ -n "$cuobjdump" ] || echo "machine code: not looked at, there is no cuobjdump with nvdisasm here"

for architecture in $architectures; do
  if ! grep -qx "sm_$architecture" <<<"$known"; then
    echo "sm_$architecture: this nvcc does not know it"
    continue
  fi
  compiled "$architecture" "$source" "${flags[@]}" || continue
  cp "$work"/keep/*update*.ptx "$work/update.ptx"
  awk -v architecture="sm_$architecture" '
    /Compiling entry function/ { split($0, quoted, "\x27"); name = quoted[2]; update = name ~ /update_kernel|measure_kernel|layer_kernel/; kernels += update }
    update && /bytes stack frame/ { if ($1 + $5 + $9 != 0) { print "  " name ": " $0; spilled++ } }
    update && /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); n = substr($0, RSTART + 5, RLENGTH - 5) + 0; if (n > most) most = n; if (!least || n < least) least = n
      if (match($0, /[0-9]+ bytes smem/) && substr($0, RSTART) + 0 > shared) shared = substr($0, RSTART) + 0 }
    END {
      if (!kernels || !most) { print architecture ": no update kernel in the compiler\x27s report"; exit 1 }
      printf "%s: %d update kernels, %d of them spill or use local memory, %d to %d registers a thread, at most %d bytes of shared memory a block\n",
        architecture, kernels, spilled, least, most, shared
      exit spilled > 0
    }' "$work/log" || wrong "sm_$architecture: see above"
  [ -n "$cuobjdump" ] || continue
  if ! PATH=$(dirname "$cuobjdump"):$PATH "$cuobjdump" -sass "$work/code" >"$work/sass" 2>"$work/log"; then
    echo "sm_$architecture: machine code not looked at, $cuobjdump fails: $(head -1 "$work/log")"
    continue
  fi
  # Scalars of the step are loaded too, some of them 16 bytes at a time: at least as many as the streams need.
  awk -v architecture="sm_$architecture" "$facts"'
    function bad(what) { print "  " name ": " what; failures++ }
    function finish() {
      if (!inside) return
      inside = 0
      if (local_memory > 0) bad("local memory")
      if (reads < 0) { bad("its step is not known here"); return }
      if (!aligned) {
        unaligned++
        if (wide_stores > 0) bad("16-byte stores to any address")
        return
      }
      if (wide_loads < wide) bad("16-byte loads: " wide_loads ", not " packs " for each of " streams " streams and again for gradients")
      if (wide_stores < packs * (1 + writes)) bad("16-byte stores: " wide_stores ", not " packs " for each of " 1 + writes " streams")
      fixed++
    }
    /Function : / {
      finish(); name = $NF
      inside = name ~ /update_kernel/
      facts(name)
      wide_loads = wide_stores = local_memory = 0
    }
    !inside { next }
    /[ \t](LDG|LD)\.E(\.[A-Z0-9]+)*\.128/ { wide_loads++ }
    /[ \t](STG|ST)\.E(\.[A-Z0-9]+)*\.128/ { wide_stores++ }
    /[ \t](LDL|STL)[. ]/ { local_memory++ }
    END {
      finish()
      if (!fixed || !unaligned) { print architecture ": no update kernel in the machine code"; exit 1 }
      printf "%s: machine code of %d kernels loads and stores every stream 16 bytes at a time (LDG.E.128, STG.E.128), %d wrong\n", architecture, fixed, failures
      exit failures > 0
    }' "$work/sass" || wrong "sm_$architecture, machine code: see above"
done

if [ -f "$work/update.ptx" ]; then
  # Loads from the first table entry on: before it are the step's scalars, and the control.
  awk "$facts"'
    function begin(line) {
      match(line, /_Z[A-Za-z0-9_]+/); name = substr(line, RSTART, RLENGTH)
      inside = name ~ /update_kernel/
      wide_loads = narrow_loads = low_loads = hinted_loads = flags = wide_stores = hinted_stores = narrow_stores = low_stores = 0
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
        if (wide_loads < wide || hinted_loads < wide - packs) bad("16-byte loads: " wide_loads ", " hinted_loads " of which the cache may forget, not " packs " for each of " streams " streams")
        if (flags) bad("loads of table entries: " flags ", though none are needed")
        if (wide_stores < packs || hinted_stores || narrow_stores > 0) bad("stores: " wide_stores " of 16 bytes, " narrow_stores " narrow ones")
        fixed++
        return
      }
      unrolled = terms < 0 && wide_loads == wide + 2 * packs  # the loop over neighbours: two bodies, and what is left
      if (wide_loads != wide && !unrolled) bad("16-byte loads: " wide_loads ", not " packs " for each of " streams " streams and again for gradients")
      if (low_loads != low) bad("8-byte loads of gradients in low precision: " low_loads ", not " low)
      if (hinted_loads != wide_loads + low_loads - packs) bad("loads that the cache may forget: " hinted_loads ", not all but those of x")
      if (narrow_loads > (encoded ? 12 : terms < 0 ? 6 : 0) + 15 * encoded * packs + factors) bad("narrow loads: " narrow_loads ", not the address and the weight of a neighbour (and the factors of layers) alone")
      if (flags != packs) bad("loads of table entries: " flags ", not " packs)
      if (hinted_stores * (1 + writes) != wide_stores * writes) bad("stores that the cache may forget: " hinted_stores ", not those of the states")
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
      if ($0 ~ /cache_hint/) hinted_loads++
      if ($0 ~ /\.(v4\.[fbu]32|v2\.[fbu]64)[ \t]/) wide_loads++
      else if ($0 ~ /cache_hint\.v2\.u32/) low_loads++
      else narrow_loads++
    }
    /st\.global/ {
      if ($0 ~ /cache_hint/) hinted_stores++
      if ($0 ~ /st\.global(\.L2::cache_hint)?\.(v4\.[fbu]32|v2\.[fbu]64)/) wide_stores++
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

# Peer memory's counters: signals release to the whole system behind a fence, waits acquire from it, and neither spills.
handshakes=$root/kernels/cuda/runtime/peer.cu
for architecture in $architectures; do
  grep -qx "sm_$architecture" <<<"$known" && compiled "$architecture" "$handshakes" "${flags[@]}" || continue
  cp "$work"/keep/*peer*.ptx "$work/peer.ptx"
  if [ "$(grep -c 'bytes spill stores' "$work/log")" != 2 ] || grep 'bytes spill stores' "$work/log" | grep -qv ' 0 bytes spill stores, 0 bytes spill loads'; then
    wrong "sm_$architecture: the two kernels of peer.cu spill, or are not there"
  fi
done
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
# Batch norms. A kernel that comes onto the device before the one ahead of it is done waits for that one before it touches memory. And what
# the last block reads of other blocks' results lies behind the counter's increment, between fences, and is not read as constant data.
norms=$root/kernels/cuda/operations/batch_norm.cu
norm_flags=()
for flag in "${flags[@]}"; do [ "$flag" = -fmad=false ] || norm_flags+=("$flag"); done  # that one is for the update alone
if grep -qx "sm_90" <<<"$known"; then
  if compiled 90 "$norms" "${norm_flags[@]}"; then
    if grep 'bytes spill stores' "$work/log" | grep -qv ' 0 bytes spill stores, 0 bytes spill loads'; then wrong "sm_90: kernels of batch_norm.cu spill"; fi
    awk '
      function bad(what) { print "  " name ": " what; failures++ }
      function finish() {
        if (name == "") return
        if (second != waits) bad(second ? "does not wait for the kernel ahead" : "waits, but is never launched so")
        if (second && early) bad("touches memory " early " times before it waits")
        if (first != arrives) bad("increments a counter " arrives " times")
        if (first && (fences < 2 || late)) bad(fences " fences, and " late " loads as of constant data behind the counter")
        firsts += first; seconds += second
      }
      /\.entry / {
        finish(); match($0, /_Z[A-Za-z0-9_]+/); name = substr($0, RSTART, RLENGTH)
        first = name ~ /7momentsI|13gradient_sumsI/; second = name ~ /9normaliseI|14input_gradientI/
        waits = early = arrives = fences = late = 0
      }
      /griddepcontrol\.wait/ { waits++ }
      /[ \t](ld|st|atom|red)\.(global|relaxed|volatile|acquire|release)/ && !waits { early++ }
      /membar\.gl|fence\.(sc|acq_rel)\.gpu/ { fences++ }
      /atom\.(global\.)?(relaxed\.gpu\.)?(global\.)?inc/ { arrives++ }
      /ld\.global\.nc/ && arrives { late++ }
      END {
        finish()
        if (!firsts || !seconds) { print "PTX: the kernels of batch_norm.cu are not found"; exit 1 }
        printf "PTX: of batch_norm.cu %d kernels wait before they touch memory, in %d the last block reads behind the counter, %d wrong\n", seconds, firsts, failures
        exit failures > 0
      }' "$work"/keep/*batch_norm*.ptx || wrong "PTX of batch_norm.cu: see above"
    if [ -n "$cuobjdump" ] && PATH=$(dirname "$cuobjdump"):$PATH "$cuobjdump" -sass "$work/code" >"$work/sass" 2>"$work/log"; then
      awk '
        /Function : / { name = $NF; second = name ~ /9normaliseI|14input_gradientI/; waited = 0; kernels += second }
        second && /ACQBULK/ { waited = 1 }
        second && !waited && /[ \t](LDG|STG|LD|ST|ATOMG|RED)\./ { print "  " name ": touches memory before it waits:" $0; failures++; waited = 1 }
        END { printf "sm_90: in machine code %d kernels of batch_norm.cu wait before they touch memory, %d wrong\n", kernels, failures; exit failures > 0 || !kernels }
      ' "$work/sass" || wrong "machine code of batch_norm.cu: see above"
    fi
  fi
fi
exit $status
