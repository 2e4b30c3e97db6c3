#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, and trains
# configs/quickstart.json, of pictures, on 4 ranks.
#   scripts/train.sh [ARG...]       ARGs go to starling-train: --set epochs=1, --output DIR --resume
#                                   latest, --dry-run, ...
#   scripts/train.sh text [ARG...]  trains configs/text_gpt.json, a language model of the King James
#                                   Bible (Debian's bible-kjv), and writes some text with it
# Environment: STARLING_RANKS (4), STARLING_OUTPUT (runs/<config>-<time>), STARLING_BUILD (build),
# STARLING_JOBS, STARLING_DATA (build/data: the text and its tokens are in bible/ there).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=${STARLING_RANKS:-4}
case $ranks in '' | *[!0-9]* | 0*) die "STARLING_RANKS=$ranks: a number of ranks, 1 or more, is needed" ;; esac

job=quickstart command=scripts/train.sh packages=() programs=() given=()
if [ "${1:-}" = text ]; then
  job=text_gpt command="scripts/train.sh text" packages=(bible-kjv) programs=(starling-prepare starling-predict)
  text=${STARLING_DATA:-$root/build/data}/bible
  given=(--set "data.path=$text")
  shift
fi
case ${1:-} in '' | -*) ;; *) die "unknown word '$1'; known: text, or options of starling-train as --set epochs=1" ;; esac

# --output among the arguments wins; commands that train nothing get no output folder.
output=""
trains=1
previous=""
for argument in "$@"; do
  if [ "$previous" = --output ]; then output=$argument; fi
  case $argument in
    --output=*) output=${argument#--output=} ;;
    --dry-run | --list | --list=* | --evaluate | --evaluate=* | --describe-config | --version) trains=0 ;;
    --help | -h)
      head_of_script
      if [ -x "$build/bin/starling-train" ]; then
        printf '\nstarling-train: '
        exec "$build/bin/starling-train" --help
      fi
      exit 0
      ;;
  esac
  previous=$argument
done
arguments=("$@")
if [ -z "$output" ] && [ $trains = 1 ]; then
  output=${STARLING_OUTPUT:-$root/runs/$job-$(date +%Y%m%d-%H%M%S)}
  arguments+=(--output "$output")
fi

# The text as tokens: once.
prepare_text() {
  local folder=$1
  [ -f "$folder/meta.json" ] && return
  mkdir -p "$folder"
  if [ ! -s "$folder/bible.txt" ]; then
    command -v bible >/dev/null || die "the program bible (Debian's package bible-kjv) is missing; install it, or put any text into $folder/bible.txt"
    say "writing $folder/bible.txt"
    bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$folder/bible.txt.part" # without the verses' numbers
    mv "$folder/bible.txt.part" "$folder/bible.txt"
  fi
  "$build/bin/starling-prepare" tokenizer "$folder/bible.txt" --vocab 2048 --out "$folder/tokenizer.json"
  "$build/bin/starling-prepare" tokens "$folder/bible.txt" "$folder" --tokenizer "$folder/tokenizer.json"
}

"$root/scripts/setup.sh" "${packages[@]}"
configure
compile starling-train "${programs[@]}"
if [ $job = text_gpt ]; then prepare_text "$text"; fi
mpi_environment

say "training configs/$job.json on $ranks ranks"
stop() {
  stop_mpi "$1"
  [ "$signals" -gt 1 ] || printf '\n==> stopping after a checkpoint (again to stop at once)\n' >&2
}
start_mpi mpirun -n "$ranks" "$build/bin/starling-train" "$root/configs/$job.json" "${given[@]}" "${arguments[@]}" </dev/null
on_stop stop
status=0
wait_mpi || status=$?

if [ $trains = 0 ]; then exit "$status"; fi
if [ "$status" = 0 ]; then
  report="starling-report $output"
  # And what the pages go on with
  (compile starling-report starling-predict starling-prepare starling-topo starling-doctor) || warn "the report and other programs did not compile"
  if "$build/bin/starling-report" "$output" --out "$output/report.html" >"$build/report.log" 2>&1; then
    report="$output/report.html, of $build/bin/starling-report (--text draws it here)"
  fi
  value() { sed -n "s/^.*\"$1\": *\([0-9.eE+-]*\).*$/\1/p" "$output/summary.json" | head -1; }
  printf '\nDone in %.0f s of training. ' "$(value train_seconds)"
  if [ $job = text_gpt ]; then
    printf 'Test perplexity: %.2f. What the model writes:\n\n' "$(value test_perplexity)"
    "$build/bin/starling-predict" "$output" --prompt "And it came to pass" --tokens 120 --temperature 0.8 --top-k 50 --seed 1
    next="  starling-predict $output --prompt \"In the beginning\"      more text, of $build/bin
  starling-prepare export $output DEST                 the model as Hugging Face's transformers load it
  docs/language.md                                     a text of your own, and larger models"
  else
    printf 'Test accuracy: %s\n' "$(value test_accuracy)"
    next="  scripts/train.sh --set sync.algorithm=allreduce          the same job with gradient all-reduce
  scripts/train.sh --set sync.topology.type=ring           another topology
  scripts/get_cifar10.sh build/data/cifar10                real CIFAR-10, then configs/cifar10_resnet20.json (see README.md)"
  fi
  cat <<END

  model     $output/model.safetensors
  metrics   $output/metrics.jsonl (a line per interval), $output/summary.json
  report    $report
  curves    tensorboard --logdir "$output"
  config    $output/config.json (every key; training from it repeats the run)
Try next:
$next
END
elif [ $signals -gt 0 ] || [ "$status" = 75 ]; then
  if compgen -G "$output/checkpoints/step-*/DONE" >/dev/null; then
    printf '\nStopped. To go on from the newest checkpoint:\n  %s --output %q --resume latest\n' "$command" "$output" >&2
  else
    printf '\nStopped before the first checkpoint.\n' >&2
  fi
elif [ $told = 0 ]; then # a rank's error stands last
  printf '\nerror: training ended with exit status %s; the reason stands above (docs/outputs.md lists the codes)\n' "$status" >&2
fi
exit "$status"
