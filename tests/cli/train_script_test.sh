#!/usr/bin/env bash
# scripts/train.sh from another folder, on few images: trains, says where things lie, and can be
# stopped and resumed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# mpirun sits it out, twice, after any failure; the script's own is 5
export OMPI_MCA_odls_base_sigkill_timeout=1
export STARLING_BUILD=$build STARLING_SKIP_SETUP=1 STARLING_RANKS=2
few=(--set data.limit=2048 --set data.test_limit=512 --set evaluate.every_epochs=0)

# Nothing is installed or built meanwhile: each would say "==>".
for script in train test setup package pack_gpu nightly site format launch get_cifar10 get_cudnn_frontend man_page completion topology_pictures; do
  check "scripts/$script.sh --help" 0 "scripts/$script\.sh" env -u STARLING_SKIP_SETUP PATH=/usr/bin:/bin timeout 10 "$root/scripts/$script.sh" --help
  verify "does nothing else" bash -c '! grep -q "^==>" .stdout'
done
check "scripts/train.sh --help behind other words has the program's options, too" 0 "^ *--dry-run" timeout 10 "$root/scripts/train.sh" text --set steps=4 --help
STARLING_OUTPUT=$work/a check "a short training" 0 "Test accuracy: 0\.[0-9]+" "$root/scripts/train.sh" "${few[@]}" --set steps=4
for word in model.safetensors metrics.jsonl report.html "Try next"; do verify "the last lines name $word" grep -qF "$word" "$work/.stdout"; done
check "a folder in use" 2 "a" "$root/scripts/train.sh" "${few[@]}" --set steps=4 --output "$work/a"
check "a dry run" 0 "parameters" "$root/scripts/train.sh" --dry-run
check "what is wrong" 2 "batchsize: unknown key" "$root/scripts/train.sh" --set batchsize=3
verify "stands last" bash -c 'tail -n 1 "$1" | grep -q "batchsize: unknown key"' _ "$work/.stderr"
check "a bad number of ranks" 2 "STARLING_RANKS" env STARLING_RANKS=many "$root/scripts/train.sh"

# Any text will do.
export STARLING_DATA=$work/data
mkdir -p data/bible && cat "$root"/docs/*.md >data/bible/bible.txt
check "a text" 0 "Test perplexity: [0-9.]+\. What the model writes:" "$root/scripts/train.sh" text --set steps=4 --set data.test_limit=64 --output "$work/t"
verify "which it goes on with" grep -q "^And it came to pass.\+" "$work/.stdout"
verify "its report is there, and starts no model for it" bash -c 'grep -q id=.curves t/report.html && ! grep -q "What the models write" t/report.html'
verify "and can be taken along" "$build/bin/starling-prepare" export t exported

"$root/scripts/train.sh" "${few[@]}" --set steps=100000 --set log_every=1 --output "$work/b" >b.log 2>&1 &
pid=$!
wait_for_lines b 3 || wait_for_lines b 3 # it builds first
kill -TERM $pid
status=0
wait $pid || status=$?
cp b.log .out
verify "a stop ends with 75 (it was $status)" test $status = 75
cp b.log .out
verify "and says how to resume" grep -q -- "--resume latest" b.log
verify "and leaves a checkpoint" bash -c 'ls b/checkpoints/*/DONE'
steps=$(($(ls b/checkpoints | sed 's/step-//' | sort -n | tail -1) + 2))
check "the resume that it names" 0 "Test accuracy" "$root/scripts/train.sh" "${few[@]}" --set steps=$steps --output "$work/b" --resume latest
finish
