#!/usr/bin/env bash
# Tokens of a mixed text, and the text of these, are those of Hugging Face's tokenizers, in the forms
# of GPT-2's, Llama's, Qwen's and Mistral's files. Skipped where Python has no tokenizers.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
if ! python3 -c "import tokenizers" 2>/dev/null; then
  echo "skipped: Python has no tokenizers here to compare with"
  exit 77
fi
check "3 MB of scripts, code, numbers, signs and torn characters" 0 "^metaspace: [0-9]+ tokens of [0-9]+ bytes: the same" \
  python3 "$root/tests/nightly/tokenizers_compare.py" "$build/bin/starling-prepare" 3
finish
