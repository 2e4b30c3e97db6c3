#!/usr/bin/env bash
# Exported models of text in Hugging Face's transformers, and back: their test loss, what they write
# next, and the tokenizer's numbers. Skipped where transformers is not.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if ! python3 -c "import torch, transformers" 2>/dev/null; then
  echo "skipped: Python has no torch and transformers here, so no model is opened in them"
  exit 77
fi
prepare=$build/bin/starling-prepare
cat "$root"/docs/*.md >text.txt
"$prepare" tokenizer text.txt --vocab 600 --out tokenizer.json >/dev/null
"$prepare" tokens text.txt data --tokenizer tokenizer.json >/dev/null
# Ends, what stands before a prompt, and the folder in place of a run
ends() {
  check "a folder with bos and several ends" 0 "^folder" python3 "$root/tests/cli/hugging_face_models.py" --ends $1
  check "goes on as in transformers, to its end" 0 "^the same" python3 "$root/tests/cli/hugging_face_models.py" --compare $1-ends "$build/bin/starling-predict"
  check "is measured" 0 '"test_loss"' "$train" $1.json --set init=$1-ends --set data.tokenizer=tokenizer.json --set data.path=data --evaluate $1-ends
  check "begins a run" 0 "" "$train" $1.json --set init=$1-ends --set steps=1 --set optimizer.lr=0 --output $1-tuned
  check "that is exported" 0 "" "$prepare" export $1-tuned $1-ends-again
  for file in generation_config.json tokenizer_config.json tokenizer.json chat_template.jinja; do
    verify "with its $file" cmp $1-ends/$file $1-ends-again/$file
  done
  check "and goes on the same way" 0 "^the same" python3 "$root/tests/cli/hugging_face_models.py" --compare $1-ends-again "$build/bin/starling-predict"
}
for type in gpt2 llama; do
  more='{}'
  if [ $type = llama ]; then more='{"kv_heads": 2, "hidden": 88}'; fi
  python3 - $type "$more" <<'END' >$type.json
import json, sys
model = {"type": sys.argv[1], "layers": 2, "heads": 4, "width": 32, "context": 32, **json.loads(sys.argv[2])}
print(json.dumps({"model": model, "data": {"type": "tokens", "path": "data", "sequence_length": 32, "test_limit": 16}, "batch_size": 4, "steps": 10, "optimizer": {"type": "adamw", "lr": 1e-2}}))
END
  check "$type trains" 0 "" "$train" $type.json --output $type
  check "$type is exported" 0 "has config.json" "$prepare" export $type $type-exported
  check "$type in transformers: its loss, its next tokens, its tokenizer" 0 "^the same" python3 "$root/tests/cli/hugging_face_models.py" $type "$build/bin/starling-predict"
  loss=$(printf %.4f "$(sed -n 's/.*"test_loss": *\([0-9.]*\).*/\1/p' $type/summary.json)")
  check "$type as transformers saved it begins a run" 0 "test loss $loss" "$train" $type.json --set init=$type-saved --set steps=1 --set optimizer.lr=0 --output $type-again
  ends $type
done
if python3 -c "import lm_eval" 2>/dev/null; then
  for folder in gpt2-exported llama-ends; do  # without a bos token, and with one
    check "$folder scores texts as lm-evaluation-harness does" 0 "^the same" env HF_HOME="$work/.hf" python3 "$root/tests/cli/hugging_face_models.py" --score $folder "$build/bin/starling-predict"
  done
fi
finish
