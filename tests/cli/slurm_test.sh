#!/usr/bin/env bash
# ctest: longer at night
# Jobs of Slurm, by the scripts of examples/cluster: how they end, what signals save, and who is
# queued again; at night arrays, the end of a job's time, preemption without grace, and nodes that
# come and go, too. Slurm runs here, as two nodes with a name, a /dev/shm and a folder of their own; it
# needs root.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for program in slurmctld slurmd munged unshare; do
  command -v $program >/dev/null || PATH=$PATH:/usr/sbin command -v $program >/dev/null || missing=$program
done
[ "$(id -u)" = 0 ] || missing=root
[ -z "${missing:-}" ] || { echo "SKIPPED: jobs of Slurm need $missing (packages slurm-wlm and munge)" && exit 77; }
export PATH=$PATH:/usr/sbin SLURM_CONF=$work/slurm.conf
chmod 755 "$work"
port=$((20000 + $$ % 9000 * 4))
mkdir -m 700 key && mkdir -p state spool tmp/n1 tmp/n2 && head -c 1024 /dev/urandom >key/munge.key && chmod 600 key/munge.key
cat >slurm.conf <<END
ClusterName=one
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$work/munge.sock,cred_expire=5
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
TmpFS=$work/tmp/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4
PartitionName=low Nodes=n[1-2] Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=plain Nodes=n[1-2] PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=n[1-2] PriorityTier=9 PreemptMode=OFF
END
within() { # SECONDS COMMAND...: it succeeds once
  local end=$((SECONDS + $1))
  shift
  until "$@"; do [ $SECONDS -lt $end ] && sleep 0.2 || return 1; done
}
end() {
  local pids
  scancel -u root 2>/dev/null && within 25 none_left
  pids=$(cat "$work"/*.pid 2>/dev/null)
  kill $pids 2>/dev/null
  within 10 gone $pids
  umount "$work"/spool/* 2>/dev/null
  rm -rf "$work"
}
gone() { ! kill -0 "$@" 2>/dev/null; }
none_left() { [ -z "$(squeue -h 2>/dev/null)" ]; }
trap end EXIT
munged --force --key-file="$work/key/munge.key" --socket="$work/munge.sock" --pid-file="$work/munged.pid" --log-file="$work/munged.log" --seed-file="$work/key/seed"
slurmctld -c
for node in n1 n2; do
  unshare --uts --mount sh -c 'hostname "$0"; mount -t tmpfs tmpfs /dev/shm; exec slurmd -D -N "$0"' $node >$node.out 2>&1 </dev/null &
done
for _ in $(seq 100); do
  [ "$(sinfo -h -t idle -o %D -p low 2>/dev/null)" = 2 ] && break
  sleep 0.1
done
verify "two nodes are up" test "$(sinfo -h -t idle -o %D -p low)" = 2

small_config
sed -i 's/"batch_size": 16/"batch_size": 16, "threads": 1/' small.json
sed 's/"steps": 12/"steps": 10000000/' small.json >long.json
# Slurm's scripts, on this machine's files; CONFIG and OUT come with the job.
cp "$root"/examples/cluster/slurm{,_srun}.sh .
for script in slurm*.sh; do
  sed -i "s|--nodes=4 --ntasks-per-node=2 --cpus-per-task=8|--nodes=2 --ntasks-per-node=1|; s|--cpus-per-task=8||; s|^cd .*|cd $work|; s|scripts/launch.sh|$root/&|
    s|build/bin/starling-train|$train|; s|configs/cifar10_resnet18.json|\$CONFIG|; s|/shared/runs/one|\$OUT|" $script
done
newest() { ls "$1/checkpoints" 2>/dev/null | sed 's/step-//' | sort -n | tail -1; }
starts() { [ "$(grep -c '^output: ' "run-$1.log")" = "$2" ]; }
ended() { ! squeue -h -n "run-$1" -o %t | grep -q .; }
steps() { [ "$(cat "run-$1/metrics.jsonl" 2>/dev/null | wc -l)" -gt "$2" ]; }
submit() { # NAME CONFIG SCRIPT [OPTION...]
  OUT=$1 CONFIG=$2 sbatch -J "$1" -o "$1.log" "${@:4}" "$3" >/dev/null
}
good() { submit "good-$1" small.json "$1" -W && grep -q "2 ranks on" "good-$1.log"; }
bad() {
  submit "bad-$1" none.json "$1" -W
  [ $? = 2 ] && [ "$(grep -c 'none\.json' "bad-$1.log")" = 1 ]
}
signalled() {
  local batch=()
  if grep -q "signal=B:" "$1"; then batch=(--batch); fi
  scancel "${batch[@]}" -s USR1 -n "run-$1"
  within 60 starts "$1" 2 && grep -q 'continuing after step [1-9]' "run-$1.log"
}
scripts=(slurm.sh slurm_srun.sh)
all() { # COMMAND [ARGUMENT...]: for both scripts, side by side
  local script pid pids=() status=0
  for script in "${scripts[@]}"; do "$1" "$script" "${@:2}" >"$script.told" 2>&1 & pids+=($!); done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  [ $status = 0 ] || tail -n 20 ./*.told ./*-slurm*.log
  return $status
}
verify "a good run ends with 0" all good
verify "what is wrong ends with 2, told once" all bad
for script in "${scripts[@]}"; do submit "run-$script" long.json "$script"; done
trains() { within 30 steps "$1" "$2"; }
verify "long ones train" all trains 5
verify "after SIGUSR1 they are queued again, and go on from their checkpoint" all signalled
for script in "${scripts[@]}"; do newest "run-$script" >"$script.before"; done
verify "a job of more priority runs" timeout 60 srun -p high -N2 -n8 true
went_on() { within 60 starts "$1" 3 && [ "$(sed -n 's/.*continuing after step //p' "run-$1.log" | tail -1)" -gt "$(cat "$1.before")" ]; }
verify "and they go on from where they were then" all went_on
for script in "${scripts[@]}"; do newest "run-$script" >"$script.before"; done
sleep 1
for script in "${scripts[@]}"; do scancel -n "run-$script"; done
saved() { within 30 ended "$1" && [ "$(newest "run-$1")" -gt "$(cat "$1.before")" ]; }
verify "scancel saves, and ends them" all saved
if nightly; then
  went_on_from() { # NAME STARTS PATTERN: the job's log has so many starts, and the last one says so
    within 120 starts "$1" "$2" && within 20 grep -qE "$3" "run-$1.log" || { grep -v "^checkpoint\|^step" "run-$1.log" && return 1; }
  }
  killed() { # NAME: its last rank is lost
    local pid
    pid=$(pgrep -f -- "-train often\.json --output run-$1 " | tail -1)
    [ -n "$pid" ] && kill -KILL "$pid"
  }
  # An array: each task is a run by itself.
  sed "s|\\\$OUT|\\\$OUT-\\\$SLURM_ARRAY_TASK_ID --set seed=\\\$((SLURM_ARRAY_TASK_ID + 1))|" slurm.sh >array
  verify "an array's tasks" env OUT=tasks CONFIG=small.json sbatch -W --array=0-1 -o tasks-%a.log array
  verify "have a folder each" bash -c 'for i in 0 1; do test -s tasks-$i/summary.json && grep -q "2 ranks on" tasks-$i.log || exit 1; done; ! same_model tasks-0/model.safetensors tasks-1/model.safetensors'
  OUT=run-array CONFIG=long.json sbatch -J run-array --array=0-1 -o run-array-%a.log array >.out
  job=$(grep -oE '[0-9]+$' .out)
  for i in 0 1; do verify "task $i trains" trains array-$i 5; done
  scancel --batch -s USR1 "${job}_1"
  verify "a task that is signalled goes on" went_on_from array-1 2 'continuing after step [1-9]'
  verify "and the other does not notice" starts array-0 1
  scancel -n run-array
  verify "both end" within 30 ended array
  # The end of its time: Slurm may signal a minute early.
  OUT=run-time CONFIG=long.json sbatch -J run-time -o run-time.log --time=2 --signal=B:USR1@60 slurm.sh >/dev/null
  verify "a job whose time is over goes on" went_on_from time 2 'continuing after step [1-9]'
  scancel -n run-time
  verify "and ends" within 30 ended time
  # Preemption without grace: Slurm itself has it queued again.
  OUT=run-plain CONFIG=long.json sbatch -J run-plain -o run-plain.log -p plain slurm.sh >/dev/null
  verify "one that may be preempted trains" trains plain 5
  verify "a job of more priority runs at once" timeout 60 srun -p high -N2 -n8 true
  verify "and it goes on" went_on_from plain 2 'continuing after step [1-9]'
  scancel -n run-plain
  verify "and ends, too" within 30 ended plain
  # A range of nodes: what is left after a loss, and all again after the next.
  sed 's|--nodes=2 --ntasks-per-node=1|--nodes=1-2 --exclusive --cpus-per-task=4|; s|--restarts 3|& --elastic|' slurm.sh >range
  sed 's/"checkpoint": {"every_epochs": 0}/"checkpoint": {"every_steps": 500}/' long.json >often.json
  saved_some() { compgen -G "run-$1/checkpoints/step-*/DONE"; }
  OUT=run-range CONFIG=often.json sbatch -J run-range -o run-range.log range >/dev/null
  verify "two nodes of one or two train" trains range 5
  verify "and have a checkpoint" within 30 saved_some range
  scontrol update NodeName=n2 State=DRAIN Reason=test
  verify "a rank is killed" killed range
  verify "the job goes on on the node that is left" went_on_from range 2 'elastic: from step [0-9]+ on 1 rank in place of 2'
  scontrol update NodeName=n2 State=RESUME
  idle() { [ -n "$(sinfo -h -t idle -n n2 -o %n)" ]; }
  verify "the other comes back" within 30 idle
  more() { [ "$(wc -l <run-range/metrics.jsonl)" -gt "$1" ]; }
  within 30 more $(($(wc -l <run-range/metrics.jsonl) + 5))
  verify "its rank is killed" killed range
  verify "and it goes on on both again" went_on_from range 3 'elastic: from step [0-9]+ on 2 ranks in place of 1'
  scancel -n run-range
  verify "and ends as well" within 30 ended range
fi
verify "no rank is left" bash -c '! pgrep -f -- "-train $0/lon[g]"' "$work"
finish
