#!/usr/bin/env bash
# --resume --elastic: a run that goes on with another number of ranks, and what it says. That the numbers are right is tests/apps/elastic_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cat >run.json <<'END'
{
  "model": {"type": "mlp", "hidden": [16]}, "precision": "fp64", "threads": 1,
  "data": {"type": "synthetic", "limit": 1000, "test_limit": 64, "image_size": 8},
  "batch_size": 8, "epochs": 2, "log_every": 1, "tensorboard": false,
  "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}, "schedule": {"type": "cosine"},
  "sync": {"algorithm": "allreduce"},
  "checkpoint": {"every_steps": 10, "keep": 99}, "evaluate": {"every_epochs": 1}
}
END
check "4 ranks" 0 "" ranks 4 "$train" run.json --output straight
from() { # FOLDER [SOURCE [STEP]]: a run that got as far as a checkpoint of another
  rm -rf "$1" && mkdir -p "$1/checkpoints" && cp -r "${2:-straight}/checkpoints/step-${3:-20}" "$1/checkpoints/" && cp "${2:-straight}/metrics.jsonl" "$1"
}
export -f losses
close_losses() { # FOLDER FOLDER: the same steps, and losses but for rounding
  [ -n "$(losses "$1")" ] && paste <(losses "$1") <(losses "$2") |
    awk '{ d = $2 - $4; if ($1 != $3 || d > 1e-9 || d < -1e-9) { print; bad = 1 } } END { exit bad }'
}

from two && check "2 ranks without --elastic" 2 "made by 4 ranks, this run has 2; start as many, or add --elastic" ranks 2 "$train" run.json --resume two
check "2 ranks go on" 0 "elastic: from step 20 on 2 ranks in place of 4, batch_size 16 in place of 8, 32 samples an update as before, 31 updates an epoch" \
  ranks 2 "$train" run.json --resume two --elastic
verify "with the steps of 4 ranks" close_losses straight two
verify "the summary says so" bash -c "tr -d ' \n' <two/summary.json | grep -F '\"elastic\":{\"from_ranks\":4,\"step\":20}'"
from again two 40 && check "they are resumed without the word" 0 "continuing after step 40" ranks 2 "$train" run.json --resume again
verify "to the bit" same_model two/model.safetensors again/model.safetensors
from back two 40 && check "and 4 ranks after them" 0 "from step 40 on 4 ranks in place of 2, batch_size 8 in place of 16" ranks 4 "$train" run.json --resume back --elastic
verify "take the same steps" close_losses straight back
from many && check "more ranks than before" 0 "on 5 ranks in place of 4, batch_size 6 in place of 8, 30 samples an update in place of 32, 33 updates an epoch" \
  ranks 5 "$train" run.json --resume many --elastic
verify "and their epochs end" grep -q '"epoch":2\.0,"test_loss"' many/metrics.jsonl
from same && check "as many ranks as before" 0 "continuing after step 20" ranks 4 "$train" run.json --resume same --elastic
verify "go on as without it" same_model straight/model.safetensors same/model.safetensors
from alone && check "each rank's batch kept" 0 "on 1 rank in place of 4, batch_size 8 as before, 8 samples an update in place of 32, the rate 0\.25 times the schedule's" \
  "$train" run.json --resume alone --elastic --set elastic.keep=rank_batch
verify "the rate follows" awk -F'"lr":' '/"step":21,/ { split($2, part, ","); exit !(part[1] > 0.005 && part[1] < 0.0125) }' alone/metrics.jsonl

# What cannot be had.
check "--elastic alone" 2 "given without --resume" "$train" run.json --elastic
check "an unknown way" 2 "elastic\.keep: .*global_batch, rank_batch" "$train" run.json --dry-run --set elastic.keep=batch
from few && check "more samples than there are" 2 "batch_size: 512 on 2 ranks is more than the 1000" \
  ranks 2 "$train" run.json --resume few --elastic --set elastic.keep=rank_batch --set batch_size=512
from other && check "another model" 2 "the config now says \[8\] for model\.hidden" ranks 2 "$train" run.json --resume other --elastic --set 'model.hidden=[8]'
from hurt && cp -r straight/checkpoints/step-30 hurt/checkpoints/ && printf x | dd of=hurt/checkpoints/step-30/rank-3.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
check "a damaged file of a rank that is no more" 0 "rank-3\.safetensors.*going on from step 20" ranks 2 "$train" run.json --resume hurt --elastic
rm -rf hurt/checkpoints/* && cp -r straight/checkpoints/step-30 hurt/checkpoints/ && printf x | dd of=hurt/checkpoints/step-30/rank-3.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
check "none left that is whole" 2 "rank-3\.safetensors: tensor" ranks 2 "$train" run.json --resume hurt --elastic

# Topologies are those of the ranks that are left.
gossip=(--set sync.algorithm=gossip --set sync.topology.type=one-peer-exp --set precision=fp32)
check "4 ranks, one-peer-exp" 0 "" ranks 4 "$train" run.json "${gossip[@]}" --output peers
from three peers && check "3 ranks cannot have it" 0 "one-peer-exp needs a power of two.*going on with elastic\.topology, base-2" ranks 3 "$train" run.json "${gossip[@]}" --resume three --elastic
from three peers && check "and have what they want" 0 "gossip over static-ring, 3 ranks" \
  ranks 3 "$train" run.json "${gossip[@]}" --set elastic.topology=static-ring --resume three --elastic
from three peers && check "which must fit, too" 2 "power of two" ranks 3 "$train" run.json "${gossip[@]}" --set elastic.topology=hypercube --resume three --elastic

from three peers && check "which is a name" 2 "elastic\.topology: .*(text|string)" ranks 3 "$train" run.json "${gossip[@]}" --set elastic.topology=5 --resume three --elastic

# scripts/launch.sh under Slurm: the job is queued again, and its next start goes on.
launch=$root/scripts/launch.sh
check "elastic without restarts" 2 "elastic is for --restarts" "$launch" --elastic -n 2 true
mkdir bin && cat >bin/scontrol <<'END'
#!/usr/bin/env bash
echo "$*" >>scontrol.log
exit "$(cat requeue)"
END
cat >dies.sh <<'END'
#!/usr/bin/env bash
echo "$*" >>arguments
exit 3
END
# Slurm is not here, and Open MPI would ask it for the ranks' places: what stands in for mpirun runs the program alone.
cat >bin/mpirun <<'END'
#!/usr/bin/env bash
while [ "$1" != ./dies.sh ]; do shift; done
exec "$@"
END
chmod +x bin/scontrol bin/mpirun dies.sh
slurm() { # RESTARTS-SO-FAR OPTION...
  local count=$1
  shift
  env PATH="$work/bin:$PATH" SLURM_JOB_ID=77 SLURM_NTASKS=1 SLURM_RESTART_COUNT="$count" "$launch" --restarts 2 "$@" ./dies.sh --output out
}
export -f slurm
export launch work
echo 0 >requeue
check "a job that may be queued again" 3 "job 77 is queued again, start 1 of 2" slurm 0
verify "is" grep -qx "requeue 77" scontrol.log
verify "and began at the beginning" grep -qx -e "--output out" arguments
check "its next start" 3 "start 2 of 2" slurm 1 --elastic
verify "goes on" grep -qx -e "--output out --resume latest --elastic" arguments
check "there is an end" 3 "restarts 2 are used up" slurm 2
echo 1 >requeue
check "a job that may not: on the same nodes" 3 "starting again on the same nodes" slurm 0
finish
