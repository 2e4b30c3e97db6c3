#!/usr/bin/env bash
# Installs Starling into a scratch prefix, builds examples/plugin against it as a user would, and trains with what it adds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cmake=${STARLING_CMAKE:-cmake}

check "install" 0 "starlingConfig\.cmake" "$cmake" --install "$build" --prefix "$work/prefix"
cp -r "$root/examples/plugin" mine
check "configure the plug-in" 0 "Build files" "$cmake" -S mine -B mine/build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_FLAGS="-Wall -Wextra"
verify "from the prefix" grep -q "starling_DIR:PATH=$work/prefix" mine/build/CMakeCache.txt
if grep -q "left out" .stdout; then
  verify "without nvcc the GPU side is left out in one line" grep -q "sign.cu left out, as no CUDA compiler" .stdout
else
  gpu_side=yes
fi
check "build the plug-in" 0 "libmine\.so" "$cmake" --build mine/build --verbose
verify "the project's own warning flags are not imposed" bash -c '! grep -q -- -Werror .stdout'
verify "it compiles without a warning" bash -c '! grep -qi warning .stdout'
[ -z "${gpu_side:-}" ] || verify "with nvcc the optimizer's kernels are in it, and need no library of CUDA" bash -c \
  'nm -DC mine/build/libmine.so | grep -q register_gpu_update && ! readelf -d mine/build/libmine.so | grep -Eq "NEEDED.*(cuda|cublas|cudnn)"'
program=$(ls prefix/bin/starling-train)
cd mine/build || exit 1
check "the installed program trains with it on 4 ranks" 0 "" ranks 4 "$work/$program" ../config.json --output "$work/out"
cd "$work" || exit 1
verify "the layer's tensors are in the model" grep -aq '"3.weight"' out/model.safetensors
verify "the optimizer's state is in the checkpoint" grep -aq 'momentum' out/checkpoints/step-20/rank-0.safetensors
verify "the resolved config shows the optimizer's default" grep -q '"beta": 0.9' out/config.json
cd mine/build || exit 1
check "resume with a plug-in" 0 "" ranks 4 "$work/$program" ../config.json --set steps=25 --output "$work/out" --resume latest
check "an odd number of ranks gets the plug-in's error" 2 "halves needs an even number" ranks 3 "$work/$program" ../config.json --dry-run
cd "$work" || exit 1

# The same from the build folder, without installing.
check "configure against the build folder" 0 "Build files" "$cmake" -S mine -B mine/build2 -Dstarling_DIR="$build" -DSTARLING_CUDA=OFF
verify "the GPU side can be switched off" grep -q "sign.cu left out, as STARLING_CUDA=OFF says" .stdout
check "build against it" 0 "libmine\.so" "$cmake" --build mine/build2 --verbose
cd mine/build2 || exit 1
check "a dry run with it" 0 "halves" ranks 2 "$train" ../config.json --dry-run
check "without kernels for GPUs a GPU is refused by the optimizer's name" 2 "optimizer 'sign' has no GPU kernels.*STARLING_CUDA_RULE" \
  "$train" ../config.json --dry-run --device cuda
finish
