#!/usr/bin/env bash
# Every model and layer of ours in PyTorch, by examples/pytorch: probabilities as starling-predict has them. Skipped where torch is not.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if ! python3 -c "import torch, PIL" 2>/dev/null; then
  echo "skipped: Python has no torch and Pillow here, so no model is opened in PyTorch"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
check "each model and layer" 0 "^airbench 96: differs by" python3 "$root/tests/cli/pytorch_models.py" "$train" "$build/bin/starling-predict" "$root/examples/pytorch"
finish
