#!/usr/bin/env bash
# Every model and layer of ours in PyTorch, by examples/pytorch: probabilities as starling-predict
# has them. Skipped where torch is not.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if ! python3 -c "import torch, PIL" 2>/dev/null; then
  echo "skipped: Python has no torch and Pillow here, so no model is opened in PyTorch"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
# Not by check, which ends a command after 200 s: some models have 60 million parameters.
verify "each model and layer" python3 "$root/tests/cli/pytorch_models.py" "$train" "$build/bin/starling-predict" "$root/examples/pytorch"
cat .out
finish
