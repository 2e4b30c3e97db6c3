#!/usr/bin/env bash
# ctest: longer at night
# Ranks that join a run (--join), as processes: of an mpirun, of a run that began with one rank; those
# that are killed and come back, by themselves too; what is refused, while the run goes on.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cat >run.json <<'END'
{
  "model": {"type": "mlp", "hidden": [64]}, "threads": 1,
  "data": {"type": "synthetic", "limit": 1024, "test_limit": 64, "image_size": 8},
  "batch_size": 16, "steps": 10000000, "log_every": 20, "tensorboard": false,
  "optimizer": {"type": "adamw", "lr": 0.003},
  "sync": {"algorithm": {"type": "diloco", "period": 20}, "transport": "zeromq", "timeout_s": 30},
  "elastic": {"join": true},
  "checkpoint": {"every_epochs": 0}, "evaluate": {"every_epochs": 0}
}
END
as_rank='echo $$ >"$NAME.pid.$OMPI_COMM_WORLD_RANK"; exec "$@"'
jobs=()
begin() { # RUN OPTION...: its first rank
  "$train" run.json --output "$@" >"$1.0.log" 2>&1 &
  first=$!
  jobs=("$first")
  until_there "$1"
}
until_there() { # RUN: until it can be joined
  for _ in $(seq 1200); do
    [ -e "$1/job.json" ] && return
    sleep 0.05
  done
  failed "$1: begins"
}
join() { # RUN NAME OPTION...: one rank more, in the background
  local run=$1 name=$2
  shift 2
  "$train" --join "$run" "$@" >"$run.$name.log" 2>&1 &
  last=$!
  jobs+=("$last")
}
says() { # LOG COUNT PATTERN: until so many lines match it
  for _ in $(seq 1200); do
    [ "$(grep -acE "$3" "$1")" -ge "$2" ] && return
    sleep 0.05
  done
  cat "$1"
  return 1
}
steps_from() { # RUN: until it has taken a hundred steps from now on
  wait_for_lines "$1" $(($(wc -l <"$1/metrics.jsonl") + 5))
}
end() { # RUN LOG RANKS: stops it; nothing is missing
  local run=$1 log=$2 count=$3 statuses="" expected
  kill -TERM "$first"
  for job in "${jobs[@]}"; do
    wait "$job"
    statuses+=" $?"
  done
  expected=$(printf ' 75%.0s' "${jobs[@]}")
  cat "$log" >.out
  verify "$run: all stop after a checkpoint" bash -c "cat $log; [ '$statuses' = '$expected' ]"
  # Under a quorum several lines may await the numbers of a rank.
  [[ $run == back2 || $run == ahead1 ]] || verify "$run: each interval has its line" bash -c "diff <(sed -nE 's/.*\"step\": *([0-9]+).*/\1/p' $run/metrics.jsonl) <(seq 20 20 \$(sed -nE 's/.*\"step\": *([0-9]+).*/\1/p' $run/metrics.jsonl | tail -1))"
  verify "$run: its checkpoint has all ranks" bash -c "ls $run/checkpoints/*; [ \$(ls $run/checkpoints/\$(ls $run/checkpoints | sed 's/step-//' | sort -n | tail -1 | sed 's/^/step-/') | grep -c rank-) = $count ]"
  verify "$run: nobody can ask any more" bash -c "! ls $run | grep -E 'job.json|secret'"
}

# Two ranks of mpirun; what is refused leaves them alone; then two join at once.
NAME=$work/two mpirun --oversubscribe -n 2 -x NAME bash -c "$as_rank" _ "$train" run.json --output two --set sync.verify=100 >two.0.log 2>&1 &
jobs=($!)
until_there two
verify "the secret is its owner's alone" test "$(stat -c %a two/secret)" = 600
openssl rand -hex 32 >other
check "others may read it" 2 "^\[secret\] other: others than its owner may read" "$train" --join two --secret other
chmod 600 other
check "another secret" 2 "^\[join\] other: rank 0 of the run, at tcp.* does not accept this secret" "$train" --join two --secret other
check "another config" 2 "^\[join\] the run refuses this process: its config is .*, this job's is" "$train" --join two --set seed=2
check "another model" 2 "the run refuses this process: its config is" "$train" --join two --set 'model.hidden=[65]'
check "a config of its own" 2 "^\[arguments\] .*--join" "$train" run.json --join two
check "no run" 2 "^\[join\] none/job.json: .*; no run is going on there" "$train" --join none
sed 's/"job": "./"job": "x/' two/job.json >stale.json
mkdir stale && cp two/secret stale/ && mv stale.json stale/job.json
check "an older run of that folder" 2 "the run refuses this process: it is a rank of another job" "$train" --join stale
verify "the run goes on" steps_from two
join two a
join two b
verify "two join at once" says two.0.log 2 "elastic: from step"
verify "and train" steps_from two
first=$(cat two.pid.0)
end two two.0.log 4
verify "one after the other" grep -aq "on 4 ranks in place of 3" two.0.log

# Ranks of an mpirun that die come back by themselves, the first one too, and one that stands still.
# Under a quorum as well, where one may be back before its loss is noticed.
is_in="on 3 ranks in place of 2|lost as another joined; .* on 3 of 3 ranks"
for quorum in 0 2; do
  name=back$quorum
  NAME=$work/$name mpirun --oversubscribe -n 3 -x NAME bash -c "$as_rank" _ "$train" run.json --output "$name" --set deterministic=false --set sync.heartbeat_s=1 --set "sync.algorithm.quorum=$quorum" >"$name.log" 2>&1 &
  jobs=($!)
  until_there "$name"
  verify "$name: trains" wait_for_lines "$name" 3
  kill -KILL "$(ps -o pid= --ppid "$(cat "$name.pid.1")")"
  verify "$name: it joins again" says "$name.log" 1 "was ended by signal 9; joins $name again, 1 of 3 times"
  verify "$name: and is in" says "$name.log" 1 "$is_in"
  kill -KILL "$(ps -o pid= --ppid "$(cat "$name.pid.0")")"
  verify "$name: so does the first one" says "$name.log" 2 "$is_in"
  steps_from "$name"
  losses=$(grep -acE "on 2 of 3 ranks, from step [1-9]" "$name.log")
  kill -STOP "$(sed -E 's/process ([0-9]+) .*/\1/' "$name/.lock")"
  verify "$name: the others go on without one that stands still" says "$name.log" $((losses + 1)) "going on without a restart, on 2 of 3 ranks, from step [1-9]"
  verify "$name: which has given no sign of life" grep -aE "lost: it has given no sign of life for [0-9.]+ s \(sync.heartbeat_s 1\)|goes on without one that it has lost" "$name.log"
  verify "$name: it joins again, too" says "$name.log" 3 "$is_in"
  steps_from "$name"
  first=$(cat "$name.pid.2")
  end "$name" "$name.log" 3
done

# One rank, then three; one is killed and comes back, then the first one is. There is no checkpoint
# to go back to. A rank notices a loss itself, or hears of it from another one. diloco's ranks compare digests of what must be equal whenever they go on.
for algorithm in '{"type": "gossip"}' '{"type": "gossip_diloco", "period": 20}' '{"type": "diloco", "period": 20}'; do
  name=$(sed -E 's/.*"type": "([a-z_]*)".*/\1/' <<<"$algorithm")
  [ "$name" != gossip_diloco ] || nightly || continue
  begin "$name" --set "sync.algorithm=$algorithm"
  join "$name" 1
  verify "$name: a rank joins" says "$name.0.log" 1 "elastic: from step .* on 2 ranks in place of 1"
  join "$name" 2
  verify "$name: another" says "$name.0.log" 1 "elastic: from step .* on 3 ranks in place of 2"
  steps_from "$name"
  kill -KILL "$last"
  wait "$last"
  unset 'jobs[2]'
  verify "$name: the others go on" says "$name.0.log" 1 "(rank 2 is lost: |goes on without one that it has lost).*; going on without a restart, on 2 of 3 ranks, from step [1-9]"
  verify "$name: from memory" test ! -e "$name/checkpoints"
  steps_from "$name"
  join "$name" 3
  verify "$name: it comes back" says "$name.0.log" 2 "elastic: from step .* on 3 ranks in place of 2"
  steps_from "$name"
  kill -KILL "$first"
  wait "$first"
  jobs=("${jobs[@]:1}")
  first=${jobs[0]}
  verify "$name: also without the first one" says "$name.1.log" 1 "(rank 0 is lost: |goes on without one that it has lost).*; going on without a restart, on 2 of 3 ranks, from step [1-9]"
  join "$name" 4
  verify "$name: whose place is taken" says "$name.1.log" 1 "elastic: from step .* on 3 ranks in place of 2"
  steps_from "$name"
  end "$name" "$name.1.log" 3
done

# Of two replicas the one that loses a rank leaves, and comes back as a whole.
for algorithm in gossip diloco; do
  [ $algorithm = gossip ] || nightly || continue
  name=replica-$algorithm
  settings=(--set sync.replica=2 --set batch_size=8 --set "sync.algorithm={\"type\": \"$algorithm\"}")
  [ "$algorithm" = gossip ] || settings+=(--set sync.algorithm.period=20)
  NAME=$work/$name mpirun --oversubscribe -n 4 -x NAME bash -c "$as_rank" _ "$train" run.json --output "$name" "${settings[@]}" >"$name.log" 2>&1 &
  jobs=($!)
  until_there "$name"
  verify "$name: trains" wait_for_lines "$name" 3
  round=0
  for victim in 3 0; do
    round=$((round + 1))
    kill -KILL "$(ps -o pid= --ppid "$(cat "$name.pid.$victim")")"
    verify "$name: the other rank leaves" says "$name.log" $round "rank [0-3] is lost, and its replica, ranks [0-3] to [0-3], leaves with it; the others go on"
    verify "$name: the other replica goes on" says "$name.log" $round "going on without a restart, on 2 of 4 ranks, from step [1-9]"
    verify "$name: with all samples" says "$name.log" $round "on 1 replica in place of 2, batch_size 16 in place of 8, 32 samples an update as before"
    verify "$name: both come back" says "$name.log" $round "on 2 replicas in place of 1, batch_size 8 in place of 16"
    steps_from "$name"
  done
  verify "$name: from memory" test ! -e "$name/checkpoints"
  first=$(cat "$name.pid.1")
  end "$name" "$name.log" 4
done

# A joiner that has a copy of the state need not wait for an outer step, nor do others wait for it.
for quorum in 0 1; do
  name=ahead$quorum
  begin "$name" --set sync.algorithm.period=1000 --set deterministic=false --set "sync.algorithm.quorum=$quorum"
  for k in 1 2; do
    join "$name" $k
    verify "$name: a rank joins" says "$name.0.log" $k "elastic: from step"
    verify "$name: with a copy" grep -aE "^has a copy of rank 0's state, [0-9.]+ [kMG]B in " "$name.$k.log"
    steps_from "$name"
  done
  verify "$name: before the next outer step" bash -c "! grep -aE 'elastic: from step [0-9]*000 ' $name.0.log"
  verify "$name: nobody was lost" bash -c "! grep -a 'going on without' $name.0.log"
  end "$name" "$name.0.log" 3
done

# Who waits for a distant outer step may be stopped, and two of an mpirun are too many.
begin slow --set sync.algorithm='{"type": "gossip_diloco", "period": 1000000}'
check "two of an mpirun" 2 "^.*--join is for one process, and mpirun has started 2" ranks 2 "$train" --join slow
join slow 1
says slow.1.log 1 "asks to join"
sleep 1
kill -TERM "$last"
wait "$last"
verify "a signal ends who waits" test $? = 143
unset 'jobs[1]'
steps_from slow
end slow slow.0.log 1

# What the run could not be with one rank more.
begin fits --set sync.algorithm=gossip --set sync.topology.type=one-peer-exp --set elastic.topology=hypercube
join fits 1
says fits.0.log 1 "on 2 ranks in place of 1"
check "no topology for so many" 2 "^\[join\] the run refuses this process: the run cannot continue with 3 ranks: .*power of two" "$train" --join fits
steps_from fits
end fits fits.0.log 2
finish
