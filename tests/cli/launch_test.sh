#!/usr/bin/env bash
# scripts/launch.sh: the mpirun command that it makes, what it refuses, and a run.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
launch=$root/scripts/launch.sh
unset SLURM_JOB_ID SLURM_NTASKS SLURM_TASKS_PER_NODE OMPI_MCA_mpi_yield_when_idle PBS_NODEFILE LSB_DJOB_HOSTFILE OMPI_MCA_orte_default_hostfile
small_config
sed -i 's/"batch_size": 16/"batch_size": 16, "threads": 1/' small.json

check "a run on two ranks" 0 "2 ranks" "$launch" -n 2 "$train" small.json --output two
verify "has its metrics" test -s two/summary.json
check "the program's status comes back" 2 "no-such\.json" "$launch" -n 2 "$train" no-such.json
verify "with its own error alone" bash -c '[ "$(grep -c . "$1")" = 1 ]' _ "$work/.stderr"
check "a dry run prints the command" 0 "^mpirun .*-n 3 .*--mca btl_tcp_flags send,inplace.* --mca mpi_yield_when_idle 1 .*true$" "$launch" --dry-run -n 3 true
check "many ranks oversubscribe" 0 "--oversubscribe .*--bind-to none" "$launch" --dry-run -n 999 true
check "words with spaces stay words" 0 "printf a\\\\ b$" "$launch" --dry-run -n 1 printf "a b"
check "hosts with slots" 0 "--host a:2,b:3 -n 5 --bind-to none " "$launch" --dry-run --hosts a:2,b:3 true
check "the same with an equals sign" 0 "--host a:2,b:3 -n 5 --bind-to none .*btl_tcp_if_include eth7" "$launch" --dry-run --hosts=a:2,b:3 --interface=eth7 true
check "fewer ranks than slots" 0 "--host a:2,b:2 -n 3 --bind-to" "$launch" --dry-run -n 3 --hosts a:2,b:2 true
check "more ranks than slots" 0 "-n 5 --oversubscribe" "$launch" --dry-run -n 5 --hosts a:2,b:2 true
check "cores per rank" 0 "--map-by slot:PE=4 --bind-to core" "$launch" --dry-run --cores 4 --hosts a:2,b:2 true
check "an interface" 0 "btl_tcp_if_include eth7 --mca oob_tcp_if_include eth7" "$launch" --dry-run --interface eth7 --hosts a,b true
printf 'a slots=2  # first\n\n# none here\nb\n' >hosts
check "a host file" 0 "--hostfile hosts -n 3" "$launch" --dry-run --hostfile hosts true
check "a Slurm job's ranks" 0 "mpirun .*-n 8 --bind-to none" env SLURM_JOB_ID=1 SLURM_NTASKS=8 "$launch" --dry-run true
check "one without a number of tasks" 0 "-n 7 --bind-to none" env SLURM_JOB_ID=1 SLURM_TASKS_PER_NODE="2(x3),1" "$launch" --dry-run true
verify "the environment wins" bash -c '! OMPI_MCA_btl_tcp_flags=send "$0" --dry-run -n 2 true | grep -q btl_tcp_flags' "$launch"

check "no program" 2 "no program" "$launch" -n 2
check "a program that is not there" 2 "no-such-program is no program" "$launch" -n 2 no-such-program
check "no number of ranks" 2 "how many ranks" "$launch" true
check "zero ranks" 2 "-n 0" "$launch" -n 0 true
check "a word for a number" 2 "-n two" "$launch" -n two true
check "an unknown option" 2 "--host; known" "$launch" --host a true
check "hosts twice" 2 "--hosts and --hostfile" "$launch" --hosts a --hostfile hosts true
check "a bad slot number" 2 "a: x" "$launch" --hosts a:x true
check "a host file that is not there" 2 "none: cannot be read" "$launch" --hostfile none true
: >nothing
check "an empty host file" 2 "names no host" "$launch" --hostfile nothing true
check "more cores than there are" 2 "this machine has" "$launch" -n 2 --cores 5000 true

# The cause of a failure is the last word. What Open MPI says by itself stays.
alone() { [ "$(cat "$work/.stderr")" = "$1" ] || { cat "$work/.stderr" && return 1; }; }
failing='sleep 0.$OMPI_COMM_WORLD_RANK; [ $OMPI_COMM_WORLD_RANK = 0 ] || { echo "rank 1: [data] a.bin: is short" >&2; exit 4; }; sleep 20'
check "a rank that fails" 4 "a\.bin" "$launch" -n 2 bash -c "$failing"
verify "has its line alone" alone "rank 1: [data] a.bin: is short"
check "a rank that says nothing" 7 "^mpirun detected that one or more processes exited|^Primary job" "$launch" -n 2 bash -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || exit 7; sleep 20'
check "a rank that is killed" 137 "exited on signal 9|Primary job" "$launch" -n 2 bash -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -KILL $$; sleep 20'
check "a host that is not there" "1|255" "ORTE was unable to reliably start one or more daemons" timeout 60 "$launch" --hosts no-such-host:2 true
printf 'not a program' >unstartable && chmod +x unstartable
check "a program that the system cannot start" "131|132|134" "execve|unable to (launch|start)" "$launch" -n 2 ./unstartable
check "what ranks print passes" 0 "^out$" "$launch" -n 1 bash -c 'echo out; printf "one\n\n  two\nthree" >&2'
verify "as it is" bash -c '[ "$(cat "$1")" = "$(printf "one\n\n  two\nthree\n")" ]' _ "$work/.stderr"
words() { # TEXT of stdin, TEXT that is left
  [ "$(printf -- "$1" | (source "$root/scripts/lib.sh" && mpi_words) 2>&1)" = "$(printf -- "$2")" ]
}
rule=--------------------------------------------------------------------------
detected="mpirun detected that one or more processes exited with non-zero status, thus causing"
verify "more ranks than slots: the remedy" words "$rule\nThere are not enough slots available in the system\n$rule\n" "$rule\nThere are not enough slots available in the system\n$rule\nwarning: mpirun counts fewer slots than ranks: OMPI_MCA_rmaps_base_oversubscribe=1 has it start more, or name hosts with more slots, such as --hosts a:4"
verify "an unknown block stays" words "[a] b\n$rule\nnews\n$rule\n" "[a] b\n$rule\nnews\n$rule"
verify "one after an unknown one goes" words "[a] b\n$rule\nnews\n$rule\n$rule\n$detected\nx\n$rule\nend\n" "[a] b\n$rule\nnews\n$rule\nend"
verify "one before the error goes, too" words "$rule\n$detected\nx\n$rule\n[a] b\n" "[a] b"
verify "one without any error stays" words "a\n$rule\n$detected\nx\n$rule\nb\n" "a\nb\n$rule\n$detected\nx\n$rule"
verify "a rank's line in it stays" words "rank 2: [a] b\n$rule\n$detected\nrank 3: [c] d\n$rule\nend\n" "rank 2: [a] b\nrank 3: [c] d\nend"
verify "one without an end is not followed for long" words "[a] b\n$rule\n$detected\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n" "[a] b\n10\n11"
verify "dashes at the end stay" words "[a] b\n$rule\n" "[a] b\n$rule"
verify "Open MPI's own brackets are no error" words "[vm:123] [[1,0],0] x\n$rule\n$detected\n$rule\n" "[vm:123] [[1,0],0] x\n$rule\n$detected\n$rule"
at_once() { # a line is there while the rank still runs
  "$launch" -n 1 bash -c 'echo now >&2; sleep 2' 2>at-once &
  local pid=$! i
  for i in $(seq 40); do grep -q now at-once 2>/dev/null && break || sleep 0.1; done
  grep -q now at-once && kill -0 $pid
  local status=$?
  wait $pid
  return $status
}
verify "a line is there at once" at_once
told() { # SIGNAL STATUS: what the rank does on a signal to the script
  rm -f begun got
  # What a shell starts in the background ignores SIGINT, unless that is undone.
  python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])' \
    "$launch" -n 1 bash -c 'trap "echo INT >got; exit 75" INT; trap "echo TERM >got; exit 75" TERM; trap "echo USR1 >got; exit 75" USR1
    touch begun; for i in $(seq 200); do sleep 0.1; done' 2>told.log &
  local pid=$! status=0 i
  for i in $(seq 100); do [ -e begun ] && break || sleep 0.1; done
  kill -"$1" $pid
  wait $pid || status=$?
  [ $status = "$2" ] && [ "$(cat got)" = "$3" ] || { echo "status $status, got $(cat got)"; cat told.log; return 1; }
}
verify "SIGUSR1 reaches the ranks, and their status comes back" told USR1 75 USR1
twice() { # a rank that does not stop: the second signal ends it
  rm -f begun
  "$launch" -n 1 bash -c 'trap "echo heard >&2" USR1; i=0; touch begun; while [ $((i += 1)) -lt 300 ]; do sleep 0.1; done' 2>twice.log &
  local pid=$! i
  for i in $(seq 100); do [ -e begun ] && break || sleep 0.1; done
  for i in TERM USR1 TERM; do kill -$i $pid && sleep 0.5; done
  SECONDS=0
  ! wait $pid && [ $SECONDS -lt 10 ] && [ "$(grep -c heard twice.log)" = 2 ]
}
verify "a second SIGTERM ends what does not" twice
for signal in INT TERM HUP USR2; do verify "as do those of a SIG$signal" told $signal 75 USR1; done
orphaned() { # a process that holds stderr does not keep the script
  SECONDS=0
  "$launch" -n 1 bash -c 'setsid sleep 30 >/dev/null & exit 3' 2>orphan.log
  [ $? = 3 ] && [ $SECONDS -lt 20 ]
}
verify "nor is it waited for whom a rank left behind" orphaned
killed() { # whoever kills the script, kills mpirun
  rm -f begun
  "$launch" -n 1 bash -c 'echo $$ >begun; sleep 60' 2>/dev/null &
  local pid=$! i
  for i in $(seq 100); do [ -s begun ] && break || sleep 0.1; done
  kill -KILL $pid
  wait $pid
  # A zombie has ended; who takes up orphans here may never look after them.
  for i in $(seq 200); do grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$(cat begun)/status" 2>/dev/null || return 0; sleep 0.1; done
  cat "/proc/$(cat begun)/status" && kill -KILL "$(cat begun)"
  return 1
}
if setpriv --pdeathsig TERM true 2>/dev/null; then verify "a killed script leaves no ranks" killed; fi

# Starts again: a plug-in's rank dies in the middle of its first start, or of each one.
cat >mortal.sh <<'END'
#!/usr/bin/env bash
# Rank 1 is killed when there is a checkpoint, as long as lives are left.
if [ "$OMPI_COMM_WORLD_RANK" = 1 ] && [ "$(cat lives)" -gt 0 ]; then
  "$@" &
  rank=$!
  until ls reborn/checkpoints/*/DONE >/dev/null 2>&1; do sleep 0.02; kill -0 $rank || exit 1; done
  echo $(($(cat lives) - 1)) >lives
  kill -KILL $rank
  wait $rank
  exit
fi
exec "$@"
END
chmod +x mortal.sh
long=(--set steps=400 --set checkpoint.every_steps=20)
echo 1 >lives
check "a lost rank: started again" 0 "start 1 of 2, from the newest checkpoint" "$launch" --restarts=2 -n 2 ./mortal.sh "$train" small.json "${long[@]}" --output=reborn
verify "from the checkpoint" grep -q "continuing after step" .stdout
check "the same without a loss" 0 "" "$launch" -n 2 "$train" small.json "${long[@]}" --output straight
verify "and the same model comes out" same_model straight/model.safetensors reborn/model.safetensors
rm -r reborn && echo 9 >lives
check "one that dies each time: the limit" "3|137" "restarts 1 are used up" "$launch" --restarts 1 -n 2 ./mortal.sh "$train" small.json "${long[@]}" --output reborn
check "what is wrong by itself is not tried again" 2 "no-such" "$launch" --restarts 3 -n 2 "$train" no-such.json --output none
check "queued again outside of a job" 2 "for a job of Slurm" "$launch" --requeue -n 2 "$train" small.json --output none
check "without an output folder" 2 "need the program's --output" "$launch" --restarts 3 -n 2 "$train" small.json

check "several connections a pair are warned of" 0 "btl_tcp_links is 2 .*leave it out" mpirun --oversubscribe -n 2 --mca btl_tcp_links 2 "$train" small.json --output links

# all threads of a rank on one core, by the user's wish
if [ "$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)" -ge 2 ]; then
  check "every rank gets cores of its own" 0 "slot:PE=[0-9]+ --bind-to core" "$launch" --dry-run -n 1 true
  check "and uses them" 0 "[2-9][0-9]* threads" "$launch" -n 1 --cores 2 "$train" small.json --set threads=0 --output own
  check "binding to one core is warned of" 0 "bound this rank to one core" mpirun -n 2 --bind-to core "$train" small.json --output bound
  check "and to one that somebody else wants" 0 "no more than one core" mpirun -n 2 --bind-to none taskset -c 0 "$train" small.json --output narrow
  check "mpirun's own binding is undone" 0 "done" mpirun -n 2 --mca btl_tcp_links 1 "$train" small.json --output unbound
  verify "without a word" bash -c '! grep -q "one core\|btl_tcp_links" "$1"' _ "$work/.stderr"
fi
finish
