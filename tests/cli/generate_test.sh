#!/usr/bin/env bash
# How a trained language model goes on with a text, by its file alone. Which token is drawn is
# tests/apps/generation_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
predict=$build/bin/starling-predict

for i in $(seq 1 60); do echo "Der Fuchs Nr. $((i * i % 97)) läßt grüßen 🦊"; done >text.txt
cat >run.json <<'END'
{"data": {"type": "text", "path": "text.txt", "sequence_length": 32},
 "model": {"type": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 32},
 "batch_size": 4, "steps": 120, "optimizer": {"type": "adamw", "lr": 0.01}, "log_every": 20, "threads": 1, "evaluate": {"every_epochs": 0}}
END
check "a language model, on 2 ranks" 0 "test loss .*test perplexity .*test bits_per_byte .*test token_accuracy" ranks 2 "$train" run.json --output run
check "goes on with a text" 0 "^Der Fuchs" "$predict" run --prompt "Der Fuchs" --tokens 20
check "as JSON, by its file alone" 0 '^\{"prompt":"Der","text":.*,"tokens":\[[0-9]+,[0-9]+,[0-9]+\],"tokens_per_second":[0-9.]+\}$' \
  "$predict" run/model.safetensors --prompt Der --tokens 3 --json
drawn() { "$predict" run --prompt "Der F" --tokens 60 --json "$@" | sed 's/,"tokens_per_second.*//'; }
verify "the same seed, the same text, beyond the context" [ "$(drawn --seed 3)" = "$(drawn --seed 3)" ]
verify "another seed, another" [ "$(drawn --seed 3)" != "$(drawn --seed 4)" ]
verify "no draws" [ "$(drawn --temperature 0)" = "$(drawn --temperature 0 --seed 9)" ]
verify "the likeliest of one is that" [ "$(drawn --temperature 0)" = "$(drawn --top-k 1)" ]
verify "and of the least share" [ "$(drawn --temperature 0)" = "$(drawn --top-p 1e-9)" ]
verify "a prompt beyond the context is its tokens one by one" python3 - "$predict" <<'PYTHON'
import json, subprocess, sys
def go(prompt, tokens):
    out = subprocess.run([sys.argv[1], "run", "--prompt", prompt, "--tokens", str(tokens), "--temperature", "0", "--json"], capture_output=True, check=True).stdout
    return json.loads(out)
prompt = "Der Fuchs Nr. 16 läßt grüßen"
made = bytes(go(prompt, 50)["tokens"])
count = next(n for n in range(40, 0, -1) if made[:n].decode(errors="ignore").encode() == made[:n])
assert made == made[:count] + bytes(go(prompt + made[:count].decode(), 50 - count)["tokens"]), made
PYTHON
check "classes of a text" 2 "^starling-predict: .*--top excludes --prompt" "$predict" run --prompt a --top 3
check "draws without a text" 2 "^starling-predict: .*--seed requires --prompt" "$predict" run --seed 3
printf 'Der\n\nFuchs Nr.\r\n' >prompts.txt
check "prompts of a file, of which one is none" 2 "^starling-predict: prompts.txt:2: .*prompt: is empty" "$predict" run --prompts prompts.txt --tokens 4
verify "the others go on" grep -q "^Fuchs Nr\.[^\r]*" .stdout
samples() { "$predict" run --prompts - --samples 2 --seed 5 --tokens 9 --json <prompts.txt; }
samples >lines.txt 2>/dev/null
verify "each sample is what its seed gives alone" python3 - "$predict" <<'PYTHON'
import json, subprocess, sys
lines = [json.loads(line) for line in open("lines.txt")]
assert [(l["prompt"], l["seed"]) for l in lines] == [("Der", 5), ("Der", 6), ("Fuchs Nr.", 5), ("Fuchs Nr.", 6)], lines
for line in lines:
    out = subprocess.run([sys.argv[1], "run", "--prompt", line["prompt"], "--tokens", "9", "--seed", str(line["seed"]), "--json"], capture_output=True, check=True).stdout
    assert json.loads(out)["tokens"] == line["tokens"], line
assert lines[0]["tokens"] != lines[1]["tokens"]
whole = json.loads(subprocess.run([sys.argv[1], "run", "--prompt", "Der", "--temperature", "0", "--json"], capture_output=True, check=True).stdout)["text"]
stop = whole[7:10]
out = subprocess.run([sys.argv[1], "run", "--prompt", "Der", "--temperature", "0", "--stop", "[no such]", "--stop", stop], capture_output=True, check=True).stdout
assert out.decode() == "Der" + whole[:whole.index(stop)] + "\n", (out, whole, stop)
PYTHON
verify "log-likelihoods follow the chain rule, and the likeliest answer is chosen" python3 - "$predict" <<'PYTHON'
import json, math, subprocess, sys
def ask(*arguments, lines=None):
    if lines is not None:
        with open("asked.jsonl", "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    out = subprocess.run([sys.argv[1], "run", *arguments], capture_output=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]
parts = [("Der F", "uchs"), ("Der Fuchs", " Nr."), ("Der F", "uchs Nr."), ("Der  ", "Fuchs"), ("Der", "  Fuchs"), ("Der ", "Katze")]
first, second, both, blanks, after, other = ask("--score", "asked.jsonl", lines=[{"context": c, "continuation": t} for c, t in parts])
assert abs(first["logprob"] + second["logprob"] - both["logprob"]) < 1e-4, (first, second, both)
assert both["tokens"] == 8 and both["greedy"] and not other["greedy"], (both, other)
assert blanks == after, (blanks, after)
# of bytes: an answer of few that are likely, and one of many
query = {"query": "Der", "choices": ["Fuchs Nr.", "F"], "gold": 0}
answer, all = ask("--score", "asked.jsonl", lines=[query])
likely = [c["logprob"] for c in answer["choices"]]
assert likely[1] > likely[0] and answer["acc"] == 0, answer
assert answer["acc_norm"] == int(likely[0] / 9 > likely[1]) == answer["acc_bytes"], answer
assert all == {"acc": 0, "acc_norm": answer["acc_norm"], "acc_bytes": answer["acc_bytes"], "questions": 1}, all
# a text of one window, whose first token has none before it; then windows, where each token counts once
text = "Der Fuchs Nr. 16 grast im Wald."
open("short.txt", "w").write(text)
(whole,) = ask("--perplexity", "short.txt", "--stride", "32")
(rest,) = ask("--score", "asked.jsonl", lines=[{"context": text[0], "continuation": text[1:]}])
assert whole["tokens"] == len(text) - 1 and abs(whole["loss"] + rest["logprob"] / whole["tokens"]) < 1e-4, (whole, rest)
assert abs(whole["perplexity"] - math.exp(whole["loss"])) < 1e-3 * whole["perplexity"], whole
open("long.txt", "w").write(text * 3)
(by_one,), (by_all,) = ask("--perplexity", "long.txt", "--stride", "1"), ask("--perplexity", "long.txt", "--stride", "32")
assert by_one["tokens"] == by_all["tokens"] == 3 * len(text) - 1 and by_one["loss"] != by_all["loss"], (by_one, by_all)
PYTHON
printf '{"context": "Der", "continuation": " F"}\n{"query": "Der", "choices": ["a"], "gold": 1}\n' >bad.jsonl
check "an answer that is none of the choices" 2 'bad.jsonl:2: gold: is 1; needed: the right one' "$predict" run --score bad.jsonl
verify "the line before has its answer" grep -q '^{"logprob":' .stdout
echo '{"context": "Der", "continuation": ""}' >bad.jsonl
check "a continuation of no token" 2 'bad.jsonl:1: continuation: has no token of its own' "$predict" run --score bad.jsonl
echo '{"context": "Der", "continuation"' >bad.jsonl
check "a line of no JSON" 2 'bad.jsonl:1' "$predict" run --score bad.jsonl
check "samples that would be equal" 2 "would be 3 equal texts" "$predict" run --prompt a --samples 3 --temperature 0
check "a prompt and prompts" 2 "excludes" "$predict" run --prompt a --prompts prompts.txt
check "prompts that are not there" 2 "none.txt: --prompts: cannot be read" "$predict" run --prompts none.txt
: >empty.txt
check "no prompts" 2 "empty.txt: --prompts: has no line" "$predict" run --prompts empty.txt
check "an empty stop" 2 "" "$predict" run --prompt a --stop ""
check "no text" 2 "prompt" "$predict" run --prompt ""
check "a picture" 2 "run is a language model; give --prompt TEXT" "$predict" run "$root/tests/golden/pictures/420.jpg"
finish
