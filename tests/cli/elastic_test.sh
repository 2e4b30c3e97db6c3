#!/usr/bin/env bash
# --resume --elastic under mpirun, and jobs of Slurm. All else is
# tests/apps/resume_program_test.cpp's, and that the numbers are right elastic_test.cpp's.
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
mkdir -p two/checkpoints && cp -r straight/checkpoints/step-20 two/checkpoints/ && cp straight/metrics.jsonl two
check "2 ranks without --elastic" 2 "made by 4 ranks, this run has 2; start as many, or add --elastic" ranks 2 "$train" run.json --resume two
check "2 ranks go on" 0 "elastic: from step 20 on 2 ranks in place of 4, batch_size 16 in place of 8" ranks 2 "$train" run.json --resume two --elastic

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
# Slurm is not here, and Open MPI would ask it for the ranks' places: what stands in for mpirun runs
# the program alone.
cat >bin/mpirun <<'END'
#!/usr/bin/env bash
[ "$1" != --version ] || exit 0
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
rm -r out
check "starts after stops and preemptions are none of them" 3 "start 1 of 2" slurm 7
echo 1 >requeue
check "a job that may not: on the same nodes" 3 "starting again on the same nodes" slurm 0
finish
