#!/usr/bin/env bash
# ctest: longer at night
# Installs Starling into a scratch prefix, builds examples/plugin against it as a user would, and
# trains with what it adds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cmake=${STARLING_CMAKE:-cmake}

for file in "$root"/examples/plugin/*.{h,cpp,cu}; do
  verify "docs/extending.md leads to $(basename "$file")" grep -qF "(../examples/plugin/$(basename "$file"))" "$root/docs/extending.md"
done
verify "docs/functions.md shows what gate.h has" python3 -c "
page = open('$root/docs/functions.md').read().split('\`\`\`cpp\n')[1].split('\`\`\`')[0]
lines = lambda text: [line.strip() for line in text.splitlines()]
assert '\n'.join(lines(page)) in '\n'.join(lines(open('$root/examples/plugin/gate.h').read()))"
check "install" 0 "starlingConfig\.cmake" "$cmake" --install "$build" --prefix "$work/prefix"
verify "what authors write includes public headers alone" python3 - "$root" <<'END'
import glob, os, re, sys
root = sys.argv[1]
public = {'starling/' + os.path.basename(file) for file in glob.glob(root + '/apps/starling/*.h')}
own = set(os.listdir(root + '/examples/plugin'))
# examples/step is compiled in this tree, with its own headers.
files = [*glob.glob(root + '/examples/plugin/*.*'), *glob.glob(root + '/examples/inference/*.*'), root + '/tests/cli/faulty_plugin.cpp',
         root + '/README.md', root + '/CONTRIBUTING.md', *glob.glob(root + '/docs/*.md')]
for file in files:
    if not file.endswith(('.h', '.cpp', '.cu', '.md')): continue
    for quote, header in re.findall(r'^ *# *include *([<"])([^>"]+)', open(file).read(), re.M):
        known = header in own if quote == '"' else '/' not in header or header in public
        assert known, f'{file}: {header}'
END
! nightly || verify "each public header compiles alone against the prefix" bash -c \
  'ls prefix/include/starling/*.h | grep -v cuda.h | xargs -P 2 -I HEADER ${CXX:-c++} -std=c++20 -fsyntax-only -Iprefix/include -Iprefix/include/starling/detail -include HEADER -x c++ /dev/null'
if command -v pkg-config >/dev/null; then
  cp "$root/examples/inference/classify.cpp" .
  PKG_CONFIG_PATH=$(dirname "$(find prefix -name starling.pc)")
  export PKG_CONFIG_PATH
  verify "a program is compiled as starling.pc says, wherever it was installed to" bash -c \
    '${CXX:-c++} -std=c++20 classify.cpp -o classify $(pkg-config --cflags --libs starling) -Wl,-rpath,"$(pkg-config --variable=libdir starling)"'
  verify "and finds its libraries there" bash -c 'ldd classify | grep "libstarling_inference.*prefix/lib"'
fi
verify "what they do not include is not installed" test ! -e prefix/include/starling/detail/apps/training/trainer.h
cp -r "$root/examples/plugin" mine
cat >>mine/CMakeLists.txt <<'END'
set_target_properties(mine PROPERTIES INSTALL_RPATH "$ORIGIN/../a/folder/that/is/far/longer/than/the/folder/of/the/build")
install(TARGETS mine DESTINATION lib)
END
# At night as a user would; for a change less of the compilers' time: joined, for one kind of GPU.
quick=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_CUDA_ARCHITECTURES=90-real)
! nightly || quick=()
check "configure the plug-in" 0 "Build files" "$cmake" -S mine -B mine/build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_FLAGS="-Wall -Wextra" "${quick[@]}"
verify "from the prefix" grep -q "starling_DIR:PATH=$work/prefix" mine/build/CMakeCache.txt
if grep -q "left out" .stdout; then
  verify "without nvcc the GPU side is left out in one line" grep -q "sign.cu left out, as no CUDA compiler" .stdout
else
  gpu_side=yes
fi
check "build the plug-in" 0 "libmine\.so" "$cmake" --build mine/build --verbose
verify "the project's own warning flags are not imposed" bash -c '! grep -q -- -Werror .stdout'
verify "it compiles without a warning" bash -c '! grep -i warning .stdout .stderr'
check "its unit test, of a layer on a backend of <starling/testing.h>" 0 "100% tests passed" ctest --test-dir mine/build
[ -z "${gpu_side:-}" ] || verify "with nvcc the kernels of the optimizer and of the operation are in it, and need no library of CUDA" bash -c \
  'nm -DC mine/build/libmine.so | grep -q register_gpu_update && nm -C mine/build/libmine.so | grep -q backward_kernel && ! readelf -d mine/build/libmine.so | grep -Eq "NEEDED.*(cuda|cublas|cudnn)"'
program=$(ls prefix/bin/starling-train)
# RUNPATHs of absolute entries and of those from $ORIGIN on: for any other, or an empty one, the
# loader looks into the folder that a program is started in. In as many FILEs, at least.
safe_runpaths() { # COUNT FILE...
  readelf -d "${@:2}" 2>/dev/null | grep -E '\(R(UN)?PATH\)' >.runpaths
  [ "$(wc -l <.runpaths)" -ge "$1" ] && ! grep -vE '\[(\$ORIGIN|/)[^:]*(:(\$ORIGIN|/)[^:]*)*\]$' .runpaths
}
export -f safe_runpaths
verify "the build's RUNPATHs have no empty and no relative entry" safe_runpaths 15 "$build"/bin/* "$build"/lib/*.so
verify "nor have those of what is installed" safe_runpaths 15 prefix/bin/* prefix/lib/*.so prefix/lib/*/*.so
check "install the plug-in" 0 "libmine\.so" "$cmake" --install mine/build --prefix "$work/mine-prefix"
verify "nor a plug-in's" safe_runpaths 2 mine/build/libmine.so mine-prefix/lib/libmine.so
cd mine/build || exit 1
check "the installed program trains with it on 4 ranks" 0 "" ranks 4 "$work/$program" ../config.json --output "$work/out"
cd "$work" || exit 1
verify "the layer's tensors are in the model" grep -aq '"3.weight"' out/model.safetensors
verify "the optimizer's state is in the checkpoint" grep -aq 'momentum' out/checkpoints/step-20/rank-0.safetensors
verify "the resolved config shows the optimizer's default" grep -q '"beta": 0.9' out/config.json
cd mine/build || exit 1
check "a layer written for fp32 is refused in bf16, by name" 2 "^\[layer\] 2: it computes in fp32, fp64, and bf16 was asked for; set precision to one of these" \
  "$work/$program" ../config.json --set precision=bf16 --output "$work/refused"
verify "before there is an output folder" test ! -e "$work/refused"
check "central differences agree with the gradients of its layers, as docs/extending.md says" 0 "^2 +right  input [0-9.]+e-1[0-9]$" "$work/$program" ../config.json --check-gradients
check "a layer made of functions has its gradients, as docs/functions.md says" 0 "^0 +right  input [0-9.]+e-[01][0-9]" "$work/$program" ../config.json --check-gradients --set 'model.layers=[{"type": "gate"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]'
check "resume with a plug-in" 0 "" ranks 4 "$work/$program" ../config.json --set steps=25 --output "$work/out" --resume latest
check "a dry run counts the optimizer's state, as docs/extending.md says" 0 " 787.1 KiB optimizer state" ranks 2 "$work/$program" ../config.json --dry-run
check "an odd number of ranks gets the plug-in's error" 2 "halves needs an even number" ranks 3 "$work/$program" ../config.json --dry-run
export work program
slow() { ranks 4 "$work/$program" ../config.json --set sync.algorithm=slow_average --set sync.algorithm.period=3 "$@"; }
export -f slow
check "its algorithm is listed" 0 "^slow_average$" "$work/$program" ../config.json --list algorithms
check "what the algorithm keeps counts as memory" 0 "[0-9.]+ [KM]iB algorithm state" slow --dry-run
check "it trains" 0 "; slow_average$" slow --set steps=25 --output "$work/straight"
verify "the resolved config shows its default" bash -c 'python3 -c "import json; a = json.load(open(\"$work/straight/config.json\"))[\"sync\"][\"algorithm\"]; assert a == {\"type\": \"slow_average\", \"period\": 3, \"momentum\": 0.5}"'
check "its schedule halves the rate" 0 "" ranks 2 "$work/$program" ../config.json --set schedule='{"type": "halving", "every": 10}' --output "$work/halved"
verify "in its eleventh step" python3 -c "import json; rates = {s['step']: s['lr'] for s in map(json.loads, open('$work/halved/metrics.jsonl')) if 'lr' in s}; assert rates[max(rates)] == rates[min(rates)] / 2, rates"
check "its transport is listed" 0 "^throttled$" "$work/$program" ../config.json --list transports
throttled() { ranks 2 "$work/$program" ../config.json --set sync.transport=throttled --set sync.transport.mbit_per_s=200 "$@"; }
export -f throttled
check "it carries a run" 0 "" throttled --output "$work/throttled"
check "beside which another carries it" 0 "" ranks 2 "$work/$program" ../config.json --output "$work/mpi" --set sync.transport=mpi
verify "the summary says what carried them" bash -c 'grep -q "\"transport\": \"throttled mpi\"" "$work/throttled/summary.json" && grep -q "\"transport\": \"mpi\"" "$work/mpi/summary.json" && grep -q "\"transport\": \"direct\"" "$work/out/summary.json"'
verify "to the same bits" same_model "$work/throttled/model.safetensors" "$work/mpi/model.safetensors"
verify "the resolved config shows its default" bash -c 'python3 -c "import json; t = [json.load(open(\"$work/\" + r + \"/config.json\"))[\"sync\"][\"transport\"] for r in (\"throttled\", \"mpi\")]; assert t == [{\"type\": \"throttled\", \"mbit_per_s\": 200, \"latency_us\": 0.0}, \"mpi\"], t"'
check "its data set is listed" 0 "^slow_store$" "$work/$program" ../config.json --list data
# Samples that declare what they cost, 16 steps an epoch.
uneven() {
  ranks 4 "$work/$program" ../config.json --set 'data={"type": "slow_store", "limit": 256, "test_limit": 16, "mbit_per_s": 1000, "sampler": "load_balanced"}' --set batch_size=4 \
    --set 'checkpoint={"every_steps": 10, "keep": 9}' --set evaluate.every_epochs=0 "$@"
}
export -f uneven
check "ranks get samples of about the same cost" 0 "" uneven --output "$work/even"
check "in the same order again with a cache" 0 "^cache: room for 272 of 272 samples" uneven --set data.cache=memory --output "$work/even_cached"
verify "the same bits" same_model "$work/even/model.safetensors" "$work/even_cached/model.safetensors"
verify "slow samples are read once by the ranks of a host" python3 -c "import json; c = json.load(open('$work/even_cached/summary.json'))['cache']; assert 256 + 16 <= c['decoded'] < 256 + 32 and c['hits'] > 0, c"
check "predict says what such a model needs" 2 "unknown layer 'softsign'.*was trained with the plug-ins .*libmine.so.*, which must be given here too" "$(dirname "$work/$program")/starling-predict" "$work/even" "$work/even/config.json"
check "a model file opens no plug-in" 2 "was trained with the plug-ins .*libmine.so.*; give its config" "$work/$program" --evaluate "$work/even"
check "between GPUs it is refused" 2 "sync.transport: is throttled, which connects CPUs only" throttled --device cuda --dry-run
cd "$work" || exit 1

nightly || finish
# The same from the build folder, without installing.
check "configure against the build folder" 0 "Build files" "$cmake" -S mine -B mine/build2 -Dstarling_DIR="$build" -DSTARLING_CUDA=OFF
verify "the GPU side can be switched off" grep -q "sign.cu left out, as STARLING_CUDA=OFF says" .stdout
check "build against it" 0 "libmine\.so" "$cmake" --build mine/build2 --verbose
cd mine/build2 || exit 1
check "a dry run with it" 0 "halves" ranks 2 "$train" ../config.json --dry-run
check "without kernels for GPUs a GPU is refused by the optimizer's name" 2 "optimizer 'sign' has no GPU kernels.*STARLING_CUDA_RULE" \
  "$train" ../config.json --dry-run --device cuda
check "so is a layer whose operation has none, by its own" 2 "^\[layer\] 2: it runs on cpu, and cuda was asked for" \
  "$train" ../config.json --set optimizer.type=sgd --set optimizer.lr=0.1 --device cuda --output "$work/refused"
verify "before there is an output folder, too" test ! -e "$work/refused"
finish
