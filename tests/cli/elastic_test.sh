#!/usr/bin/env bash
# --elastic in jobs of Slurm. All else is tests/apps/resume_program_test.cpp's and elastic_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
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
