#!/usr/bin/env bash
# From texts to a model of language: tokenizers, files of tokens, and what is refused. What tokens
# texts have is tests/apps/tokenizer_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare=$build/bin/starling-prepare
mkdir texts
cp "$root"/docs/{glossary,faq,data}.md texts

check "a tokenizer of texts" 0 "^512 tokens in own.json$" "$prepare" tokenizer texts --vocab 512 --out own.json --special '<|endoftext|>'
check "again, on one thread" 0 "" "$prepare" tokenizer texts --vocab 512 --out again.json --special '<|endoftext|>' --threads 1
verify "is the same to the byte" cmp own.json again.json
check "fewer tokens than bytes" 2 "^starling-prepare: \[arguments\] --vocab" "$prepare" tokenizer texts --vocab 100 --out own.json
check "a text as tokens" 0 "^[0-9]+ tokens for training \+ [0-9]+ for tests, of a vocabulary of 512, in tokens; [1-3]\.[0-9]+ bytes of text a token$" \
  "$prepare" tokens texts tokens --tokenizer own.json
verify "meta.json tells of them" python3 -c '
import json, os
meta = json.load(open("tokens/meta.json"))
assert meta["vocab"] == 512 and meta["tokenizer"] == "tokenizer.json" and meta["dtype"] == "uint16", meta
train, val = meta["train_tokens"], meta["val_tokens"]
assert os.path.getsize("tokens/train.bin") == 2 * train and os.path.getsize("tokens/val.bin") == 2 * val
assert train == int((train + val) * 0.9) and sorted(meta["checksums"]) == ["tokenizer.json", "train.bin", "val.bin"]'
check "which are checked" 0 "^[0-9]+ tokens, as written$" "$prepare" check tokens
cat >run.json <<'END'
{"data": {"type": "tokens", "path": "tokens", "sequence_length": 32, "limit": 512, "test_limit": 50},
 "model": {"type": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 32}, "batch_size": 8, "epochs": 1, "optimizer": {"type": "adamw", "lr": 0.01},
 "deterministic": true, "evaluate": {"every_epochs": 0}}
END
check "a model of them, on 2 ranks" 0 "test perplexity [0-9.]+, test bits_per_byte [0-9.]+" ranks 2 "$train" run.json --output run

cp -r tokens unsigned && sed -i '/"val.bin"/d; s/\("train.bin": "[0-9a-f]*"\),/\1/' unsigned/meta.json
check "a file that nothing is known of" 2 "\[check\] unsigned/meta.json: checksums: has none of val.bin; call" "$prepare" check unsigned
printf 'x' | dd of=tokens/val.bin bs=1 seek=8 conv=notrunc 2>.stdout
check "a damaged file" 2 "\[check\] tokens/val.bin: its checksum is [0-9a-f]+, meta.json says" "$prepare" check tokens
check "an empty text" 2 "\[data\] empty.txt: is empty; needed: a text" bash -c 'true >empty.txt; '"$prepare"' tokens empty.txt none'
check "ranks without a pattern" 2 "\[tokenizer\] ranks: is a file of ranks, which does not say how texts are divided; give --pattern" \
  bash -c 'echo "IQ== 0" >ranks; '"$prepare"' tokens texts none --tokenizer ranks'
check "a text in place of a tokenizer" 2 "\[tokenizer\] texts/faq.md: line 1: is '.*'; needed: a token in base64" "$prepare" tokens texts none --tokenizer texts/faq.md
check "a tokenizer that is none" 2 "\[tokenizer\] model.json: model.type: is \"Unigram\"; needed: BPE" \
  bash -c 'echo "{\"model\": {\"type\": \"Unigram\"}}" >model.json; '"$prepare"' tokens texts none --tokenizer model.json'

# Interrupted: nothing is left, and what was there stays.
yes "$(cat texts/*)" | head -c 60000000 >long.txt
mkdir kept && echo whole >kept/train.bin
stopped() {
  "$prepare" tokens long.txt kept --tokenizer own.json --threads 1 >.progress &
  until compgen -G "kept/train.bin.*.tmp" >/dev/null; do sleep 0.005; done
  kill -INT $!
  wait $!
  local status=$?
  cat .progress
  return $status
}
export -f stopped
export prepare
check "a signal stops" 130 "^stopped by a signal; nothing was written$" stopped
verify "and leaves what was there" bash -c '[ "$(ls kept)" = train.bin ] && [ "$(cat kept/train.bin)" = whole ]'
finish
