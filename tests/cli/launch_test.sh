#!/usr/bin/env bash
# scripts/launch.sh: the mpirun command that it makes, what it refuses, and a run.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
launch=$root/scripts/launch.sh
unset SLURM_JOB_ID SLURM_NTASKS OMPI_MCA_mpi_yield_when_idle
small_config
sed -i 's/"batch_size": 16/"batch_size": 16, "threads": 1/' small.json

check "a run on two ranks" 0 "2 ranks" "$launch" -n 2 "$train" small.json --output two
verify "has its metrics" test -s two/summary.json
check "the program's status comes back" 2 "no-such\.json" "$launch" -n 2 "$train" no-such.json
check "a dry run prints the command" 0 "^mpirun .*-n 3 .*--mca btl_tcp_flags send,inplace.* --mca mpi_yield_when_idle 1 .*true$" "$launch" --dry-run -n 3 true
check "many ranks oversubscribe" 0 "--oversubscribe .*--bind-to none" "$launch" --dry-run -n 999 true
check "words with spaces stay words" 0 "printf a\\\\ b$" "$launch" --dry-run -n 1 printf "a b"
check "hosts with slots" 0 "--host a:2,b:3 -n 5 --bind-to none " "$launch" --dry-run --hosts a:2,b:3 true
check "fewer ranks than slots" 0 "--host a:2,b:2 -n 3 --bind-to" "$launch" --dry-run -n 3 --hosts a:2,b:2 true
check "more ranks than slots" 0 "-n 5 --oversubscribe" "$launch" --dry-run -n 5 --hosts a:2,b:2 true
check "cores per rank" 0 "--map-by slot:PE=4 --bind-to core" "$launch" --dry-run --cores 4 --hosts a:2,b:2 true
check "an interface" 0 "btl_tcp_if_include eth7 --mca oob_tcp_if_include eth7" "$launch" --dry-run --interface eth7 --hosts a,b true
printf 'a slots=2  # first\n\n# none here\nb\n' >hosts
check "a host file" 0 "--hostfile hosts -n 3" "$launch" --dry-run --hostfile hosts true
check "a Slurm job's ranks" 0 "mpirun .*-n 8 --bind-to none" env SLURM_JOB_ID=1 SLURM_NTASKS=8 "$launch" --dry-run true
checks=$((checks + 1))
if OMPI_MCA_btl_tcp_flags=send "$launch" --dry-run -n 2 true | grep -q btl_tcp_flags; then failed "the environment wins"; else echo "ok      the environment wins"; fi

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
check "a lost rank: started again" 0 "start 1 of 2, from the newest checkpoint" "$launch" --restarts 2 -n 2 ./mortal.sh "$train" small.json "${long[@]}" --output reborn
verify "from the checkpoint" grep -q "continuing after step" .stdout
check "the same without a loss" 0 "" "$launch" -n 2 "$train" small.json "${long[@]}" --output straight
verify "and the same model comes out" same_model straight/model.safetensors reborn/model.safetensors
rm -r reborn && echo 9 >lives
check "one that dies each time: the limit" "3|137" "restarts 1 are used up" "$launch" --restarts 1 -n 2 ./mortal.sh "$train" small.json "${long[@]}" --output reborn
check "what is wrong by itself is not tried again" 2 "no-such" "$launch" --restarts 3 -n 2 "$train" no-such.json --output none
check "without an output folder" 2 "needs the program's --output" "$launch" --restarts 3 -n 2 "$train" small.json

# all threads of a rank on one core, by the user's wish
if [ "$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)" -ge 2 ]; then
  check "every rank gets cores of its own" 0 "slot:PE=[0-9]+ --bind-to core" "$launch" --dry-run -n 1 true
  check "and uses them" 0 "[2-9][0-9]* threads" "$launch" -n 1 --cores 2 "$train" small.json --set threads=0 --output own
  check "binding to one core is warned of" 0 "bound this rank to one core" mpirun -n 2 --bind-to core "$train" small.json --output bound
  check "mpirun's own binding is undone" 0 "done" mpirun -n 2 "$train" small.json --output unbound
  verify "without a word" bash -c '! grep -q "one core" "$1"' _ "$work/.stdout"
fi
finish
