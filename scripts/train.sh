#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, and trains
# configs/quickstart.json on 4 ranks.
#   scripts/train.sh [ARG...]       ARGs go to starling-train: --set epochs=1, --output DIR --resume
#                                   latest, --dry-run, ...
# Environment: STARLING_RANKS (4), STARLING_OUTPUT (runs/quickstart-<time>), STARLING_BUILD (build),
# STARLING_JOBS.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=${STARLING_RANKS:-4}
case $ranks in '' | *[!0-9]* | 0*) die "STARLING_RANKS=$ranks: a number of ranks, 1 or more, is needed" ;; esac

# --output among the arguments wins; commands that train nothing get no output folder.
output=""
trains=1
previous=""
for argument in "$@"; do
  if [ "$previous" = --output ]; then output=$argument; fi
  case $argument in
    --output=*) output=${argument#--output=} ;;
    --dry-run | --list | --list=* | --evaluate | --evaluate=* | --describe-config | --version | --help | -h) trains=0 ;;
  esac
  previous=$argument
done
arguments=("$@")
if [ -z "$output" ] && [ $trains = 1 ]; then
  output=${STARLING_OUTPUT:-$root/runs/quickstart-$(date +%Y%m%d-%H%M%S)}
  arguments+=(--output "$output")
fi

"$root/scripts/setup.sh"
configure
compile starling-train
mpi_environment

say "training configs/quickstart.json on $ranks ranks"
stop() {
  stop_mpi "$1"
  [ "$signals" -gt 1 ] || printf '\n==> stopping after a checkpoint (again to stop at once)\n' >&2
}
start_mpi mpirun -n "$ranks" "$build/bin/starling-train" "$root/configs/quickstart.json" "${arguments[@]}" </dev/null
on_stop stop
status=0
wait_mpi || status=$?

if [ $trains = 0 ]; then exit "$status"; fi
if [ "$status" = 0 ]; then
  report="starling-report $output"
  if (compile starling-report) >"$build/report.log" 2>&1 && "$build/bin/starling-report" "$output" --out "$output/report.html" >>"$build/report.log" 2>&1; then
    report="$output/report.html, of $build/bin/starling-report (--text draws it here)"
  fi
  value() { sed -n "s/^.*\"$1\": *\([0-9.eE+-]*\).*$/\1/p" "$output/summary.json" | head -1; }
  cat <<END

Done in $(printf '%.0f' "$(value train_seconds)") s of training. Test accuracy: $(value test_accuracy)
  model     $output/model.safetensors
  metrics   $output/metrics.jsonl (a line per interval), $output/summary.json
  report    $report
  curves    tensorboard --logdir "$output"
  config    $output/config.json (every key; training from it repeats the run)
Try next:
  scripts/train.sh --set sync.algorithm=allreduce          the same job with gradient all-reduce
  scripts/train.sh --set sync.topology.type=ring           another topology
  scripts/get_cifar10.sh build/data/cifar10                real CIFAR-10, then configs/cifar10_resnet20.json (see README.md)
END
elif [ $signals -gt 0 ] || [ "$status" = 75 ]; then
  if compgen -G "$output/checkpoints/step-*/DONE" >/dev/null; then
    printf '\nStopped. To go on from the newest checkpoint:\n  scripts/train.sh --output %q --resume latest\n' "$output" >&2
  else
    printf '\nStopped before the first checkpoint.\n' >&2
  fi
elif [ $told = 0 ]; then # a rank's error stands last
  printf '\nerror: training ended with exit status %s; the reason stands above (docs/outputs.md lists the codes)\n' "$status" >&2
fi
exit "$status"
