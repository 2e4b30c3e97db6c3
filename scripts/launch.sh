#!/usr/bin/env bash
# Starts a program on several ranks with the mpirun options that Starling recommends
# (docs/clusters.md says why each).
#   scripts/launch.sh [OPTION...] PROGRAM ARGUMENT...
#     -n N                  ranks; default: the slots of the hosts, or of the job
#     --hosts A:2,B:2       hosts and the ranks on each
#     --hostfile FILE       the same from a file with lines "A slots=2"; without either, hosts are
#                           those of the job of Slurm, PBS, LSF or Kubernetes' MPI Operator
#     --cores K             cores that each rank gets for itself; default on this machine: cores /
#                           ranks, on other hosts: no binding
#     --interface NAMES     network interfaces or subnets for the traffic between hosts: "eth0",
#                           "10.0.0.0/24"
#     --start-timeout S     seconds until all ranks must have come together (default 120); then
#                           those that have not are named
#     --restarts N          after a lost rank or host, start again with --resume latest, N times at
#                           most; see docs/reliability.md
#     --elastic             with --restarts: go on without the hosts that do not answer, on fewer
#                           ranks
#     --requeue             in a job of Slurm: after a stop by a signal that is no scancel, have it
#                           queued again; it goes on with --resume latest
#     --dry-run             print the command, do not run it
# OMPI_MCA_* variables win over what this script would set. SIGUSR1, SIGTERM, SIGINT and SIGHUP have
# the ranks write a checkpoint and end with 75; a second one, SIGUSR1 aside, ends them at once. Exit
# status: mpirun's; 2 for bad arguments; 3 where mpirun itself had to be ended.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# A batch script that is ended by a signal takes this one with it: no ranks go on outside of their
# job.
if [ -n "${SLURM_JOB_ID:-}" ] && [ "${LAUNCH_PARENT:-}" != $PPID ] && setpriv --pdeathsig USR1 true 2>/dev/null; then
  LAUNCH_PARENT=$PPID exec setpriv --pdeathsig USR1 "$BASH" "$0" "$@"
fi

ranks="" hosts="" hostfile="" cores="" interface="" dry_run=0 restarts=0 elastic=0 requeue=0
value() { [ $# -ge 2 ] && [ -n "$2" ] || die "$1 needs a value; see the head of $0"; }
number() { case $2 in '' | *[!0-9]* | 0* | ???????*) die "$1 $2: a whole number from 1 to 999999 is needed" ;; esac }
while [ $# -gt 0 ]; do
  case $1 in
    --hosts=* | --hostfile=* | --cores=* | --interface=* | --start-timeout=* | --restarts=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue
      ;;
    -n | -np) value "$@" && number "$1" "$2" && ranks=$2 && shift ;;
    --hosts) value "$@" && hosts=$2 && shift ;;
    --hostfile) value "$@" && hostfile=$2 && shift ;;
    --cores) value "$@" && number "$1" "$2" && cores=$2 && shift ;;
    --interface) value "$@" && interface=$2 && shift ;;
    --start-timeout) value "$@" && number "$1" "$2" && export STARLING_START_TIMEOUT_S=$2 && shift ;;
    --restarts) value "$@" && number "$1" "$2" && restarts=$2 && shift ;;
    --elastic) elastic=1 ;;
    --requeue) requeue=1 ;;
    --dry-run) dry_run=1 ;;
    -h | --help)
      head_of_script
      exit 0
      ;;
    --) shift && break ;;
    -*) die "unknown option $1; known: -n, --hosts, --hostfile, --cores, --interface, --start-timeout, --restarts, --elastic, --requeue, --dry-run" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || die "no program; usage: $0 [OPTION...] PROGRAM ARGUMENT..."
[ -z "$hosts" ] || [ -z "$hostfile" ] || die "--hosts and --hostfile are given; one of them is needed"
[ $elastic = 0 ] || [ "$restarts" -gt 0 ] || die "--elastic is for --restarts N; a start by hand takes the program's own --resume … --elastic"
# What starts again needs a folder to go on from; a --resume of its own stays as it is.
output="" again=(--resume latest)
for ((i = 1, next = 2; i <= $#; i++, next++)); do
  word=${!i}
  case $word in --output | --resume) folder=${!next:-} ;; *) folder=${word#*=} ;; esac
  case $word in
    --output | --output=*) output=$folder ;;
    --resume | --resume=*) output=${output:-$folder} again=() ;;
  esac
done
[ $elastic = 0 ] || again+=(--elastic)
if [ "$restarts" -gt 0 ] || [ $requeue = 1 ]; then
  [ -n "$output" ] || die "--restarts and --requeue need the program's --output DIR: what would it go on from?"
fi
in_slurm=0
if [ -n "${SLURM_JOB_ID:-}" ] && [ -z "$hosts$hostfile" ]; then in_slurm=1; fi
# Other batch systems name a file of their hosts, which has a line for each slot: PBS, LSF, and the
# MPI Operator of Kubernetes.
if [ $in_slurm = 0 ] && [ -z "$hosts$hostfile" ]; then hostfile=${PBS_NODEFILE:-${LSB_DJOB_HOSTFILE:-${OMPI_MCA_orte_default_hostfile:-}}}; fi
if [ $requeue = 1 ]; then
  [ $in_slurm = 1 ] || die "--requeue is for a job of Slurm on the job's own hosts, and this is none"
  command -v scontrol >/dev/null || die "--requeue needs Slurm's scontrol, which is missing here"
fi
command -v mpirun >/dev/null || die "mpirun is missing; scripts/setup.sh installs it"
command -v "$1" >/dev/null || die "$1 is no program; build it first (scripts/train.sh builds starling-train)"

# "a:2 b:1": the hosts with their slots.
hosts_with_slots() {
  if [ -n "$hosts" ]; then
    for host in ${hosts//,/ }; do case $host in *:*) echo "$host" ;; *) echo "$host:1" ;; esac done
  elif [ -n "$hostfile" ]; then
    awk '{ sub(/#.*/, "") } NF { n = 1; for (i = 2; i <= NF; i++) if (sub(/^slots=/, "", $i)) n = $i
      if (!($1 in slots)) order[++hosts] = $1
      slots[$1] = $1 in slots && n ~ /^[0-9]+$/ ? slots[$1] + n : n }
      END { for (i = 1; i <= hosts; i++) print order[i] ":" slots[order[i]] }' "$hostfile"
  fi
}
# Slots that the hosts have together; a host without a number has one slot.
slots=""
if [ -n "$hosts$hostfile" ]; then
  [ -z "$hostfile" ] || { [ -f "$hostfile" ] && [ -r "$hostfile" ]; } || die "--hostfile $hostfile: cannot be read"
  slots=0
  while IFS=: read -r host count; do
    [ -n "$host" ] || die "--hosts $hosts: a host without a name"
    number "$host:" "$count" && slots=$((slots + count))
  done < <(hosts_with_slots)
  [ "$slots" -gt 0 ] || die "$hosts$hostfile: names no host"
elif [ $in_slurm = 1 ]; then # a job without a number of tasks says "2(x3),1"
  slots=${SLURM_NTASKS:-$(sed -E 's/\(x/*/g; s/\)//g; s/,/+/g' <<<"${SLURM_TASKS_PER_NODE:-}")}
  slots=${slots:+$((slots))}
fi
ranks=${ranks:-$slots}
[ -n "$ranks" ] || die "how many ranks? -n N, --hosts or --hostfile"

# Cores of this machine that this process may use, hyper-threads counted once.
my_cores=$(lscpu -p=CORE,SOCKET,CPU 2>/dev/null | awk -F, -v allowed="$(taskset -cp $$ 2>/dev/null | sed 's/.*: *//')" '
  BEGIN { m = split(allowed, part, ","); for (i = 1; i <= m; i++) { k = split(part[i], end, "-"); for (c = end[1]; c <= end[k]; c++) may[c] = 1 } }
  !/^#/ && (allowed == "" || $3 in may) { core[$1 "," $2] = 1 }
  END { for (c in core) n++; print n + 0 }')
[ "${my_cores:-0}" -gt 0 ] || my_cores=$(nproc)

open_mpi=4 daemon=orted
case $(timeout 10 mpirun --version 2>/dev/null) in
  *"Open MPI) "[5-9]*) open_mpi=5 daemon=prted ;;
  *HYDRA*) die "mpirun is MPICH's, and this script speaks to Open MPI's; start a program that was built with MPICH by: mpiexec -n $ranks $*" ;;
esac
mpirun=(mpirun)
[ "$(id -u)" != 0 ] || mpirun+=(--allow-run-as-root)
places=() # where the ranks go
if [ -n "$hosts" ]; then places+=(--host "$hosts"); fi
if [ -n "$hostfile" ]; then places+=(--hostfile "$hostfile"); fi
places+=(-n "$ranks")

one_machine=0
if [ -z "$hosts$hostfile" ] && [ $in_slurm = 0 ]; then one_machine=1; fi
if [ $one_machine = 1 ]; then slots=$my_cores; fi
if [ -n "$slots" ] && [ "$ranks" -gt "$slots" ]; then places+=(--oversubscribe); fi
command=() # the rest

# A rank computes and communicates in threads of its own: bound to a single core (mpirun's default
# for two ranks) they would share it.
if [ -z "$cores" ] && [ $one_machine = 1 ] && [ $((my_cores / ranks)) -ge 2 ]; then cores=$((my_cores / ranks)); fi
if [ -n "${OMPI_MCA_hwloc_base_binding_policy:-${PRTE_MCA_hwloc_default_binding_policy:-}}" ]; then
  :
elif [ -n "$cores" ]; then
  if [ $one_machine = 1 ] && [ $((cores * ranks)) -gt "$my_cores" ]; then die "--cores $cores: $ranks ranks would need $((cores * ranks)) cores, this machine has $my_cores"; fi
  command+=(--map-by "slot:PE=$cores" --bind-to core)
else
  command+=(--bind-to none)
fi

setting() { # NAME VALUE: unless the environment has its own
  local name=OMPI_MCA_$1
  if [ -z "${!name+set}" ]; then command+=(--mca "$1" "$2"); fi
}
# What starts the ranks has other names in Open MPI 5.
launcher_setting() { # NAME-IN-4 NAME-IN-5 VALUE
  local name=PRTE_MCA_$2
  if [ $open_mpi = 4 ]; then
    setting "$1" "$3"
  elif [ -z "${!name+set}" ]; then
    command+=(--prtemca "$2" "$3")
  fi
}
# without PUT, which makes a pair exchange half-duplex
setting btl_tcp_flags send,inplace,need-ack,need-csum,hetero-rdma
# a waiting thread leaves the core to the computation
setting mpi_yield_when_idle 1
# Nor do mpirun's helpers on other nodes heed what Slurm sends to all processes of a step.
if [ $in_slurm = 1 ] && env --block-signal=TERM true 2>/dev/null; then
  launcher_setting orte_launch_agent prte_launch_agent "env --block-signal=TERM --block-signal=USR1 $daemon"
fi
if [ $one_machine = 0 ]; then
  if [ -n "$interface" ]; then
    setting btl_tcp_if_include "$interface"
    launcher_setting oob_tcp_if_include prte_if_include "$interface"
  fi
  if [ -n "$hosts$hostfile" ]; then # for what ranks say of a start that fails
    STARLING_HOSTS=$(hosts_with_slots | paste -sd,)
    export STARLING_HOSTS
  fi
  # What ranks on other hosts need to know of this shell.
  while IFS= read -r name; do command+=(-x "$name"); done < <(compgen -e | grep -E '^(LD_LIBRARY_PATH|STARLING_.*|NCCL_.*|UCX_.*|OMP_.*)$' || true)
elif [ -n "$interface" ]; then
  die "--interface is for several hosts; give --hosts or --hostfile"
fi
command+=("$@")

if [ $dry_run = 1 ]; then
  line=""
  for word in "${mpirun[@]}" "${places[@]}" "${command[@]}"; do
    case $word in '' | *[!A-Za-z0-9_,./:=@%+-]*) word=$(printf '%q' "$word") ;; esac
    line+="${line:+ }$word"
  done
  echo "$line"
  exit 0
fi
export HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS:-2}
on_stop stop_mpi
doctor=$(dirname "$(command -v "$1")")/starling-doctor

# silent_hosts SECONDS: those that mpirun cannot reach within this time.
silent_hosts() {
  local host
  for host in $(hosts_with_slots); do
    (timeout -k 2 "$1" "${mpirun[@]}" --host "${host%%:*}" -n 1 true >/dev/null 2>&1 </dev/null || echo "${host%%:*}") &
  done
  wait
}
# go_on_without HOSTS: ranks go to the others alone, no more of them than those have slots.
go_on_without() {
  local host left="" room=0 now
  for host in $(hosts_with_slots); do
    case " $1 " in *" ${host%%:*} "*) continue ;; esac
    left+="${left:+,}$host"
    room=$((room + ${host##*:}))
  done
  if [ -z "$left" ]; then
    warn "no host answers any more"
    exit 3
  fi
  now=$((ranks < room ? ranks : room))
  places=(--host "$left" -n "$now")
  [ -z "$1" ] || warn "no answer from ${1// /, }: going on with $now of $ranks ranks, on $left"
}
# has_ranks: whether some of the ranks are on this machine, as far as its names tell.
has_ranks() {
  local host
  [ -n "$hosts$hostfile" ] || return 0
  for host in $(hosts_with_slots); do
    case " localhost $(hostname) $(hostname -s 2>/dev/null) $(hostname -I 2>/dev/null) " in *" ${host%%:*} "*) return 0 ;; esac
  done
  return 1
}
# guard PID: ends an mpirun that would wait without an end, and returns 9 then: for hosts where it
# cannot start ranks, for a host that went, for the end of a rank that was killed while it started.
# A run that was through is not harmed: it has nothing left.
guard() {
  local seen="" gone=0 here limit=${STARLING_START_TIMEOUT_S:-120} begin=$SECONDS pause=1
  # mpirun's own, after a failure
  local patience=$((10 + 2 * ${OMPI_MCA_odls_base_sigkill_timeout:-1}))
  has_ranks || limit=0
  while sleep $pause >/dev/null 2>&1 && kill -0 "$1" 2>/dev/null; do
    here=$(ps -o pid= --ppid "$1" | sed -E 's|^ *(.*)|/proc/\1/environ|' | xargs -r grep -hoszaE '^OMPI_COMM_WORLD_RANK=[0-9]+' 2>/dev/null |
      tr -s '\0\n' '\n' | sed 's/.*=//' | sort -n | paste -sd, | sed 's/,/, /g') || true
    if [ -n "$here" ]; then
      seen=$here gone=0 pause=5
      continue
    elif [ -n "$seen" ]; then
      pause=1 gone=$((gone + 1))
      [ $gone -ge $patience ] || continue
      warn "mpirun is still there $patience s after the end of the last ranks of this machine ($seen); ending it"
    else
      [ "$limit" != 0 ] && [ $((SECONDS - begin)) -ge "$limit" ] || continue
      warn "after $limit s (--start-timeout) mpirun has started no rank on $(hostname)$(waits_for); ending it"
    fi
    kill -KILL "$1"
    return 9
  done
}
# waits_for: the hosts that mpirun has not reached, as far as can be told, and what may be wrong.
waits_for() {
  local others shared
  others=$(hosts_with_slots | sed 's/:[0-9]*$//' | grep -vxF -e "$(hostname)" -e localhost | paste -sd, | sed 's/,/, /g')
  [ -n "$others" ] || [ $in_slurm = 1 ] || return 0
  shared=$(ip -o -4 addr show 2>/dev/null | awk '$2 ~ /^(docker|br-|virbr|lxcbr|lxdbr|cni|podman)/ { sub(/\/.*/, "", $4); print " (" $2 "'"'"'s " $4 " is one that others may have, too)"; exit }')
  printf ', while it waits for its helpers on %s; each must reach this host, also in large packets and through firewalls (docs/clusters.md, Firewalls)' \
    "${others:-${SLURM_JOB_NODELIST:-}}"
  printf ', on a network that --interface names%s' "$shared"
}

# STATUS: a rank or host is gone (3), or a signal has ended one that mpirun reports so; a user's own
# signals are none
lost() {
  case $1 in 3) return 0 ;; 130 | 143) return 1 ;; *) [ "$1" -gt 128 ] ;; esac
}
# queue_again WHY [NOTE]: whether Slurm starts this job again. Its nodes may be the trouble; the
# next start may get others.
queue_again() {
  scontrol requeue "$SLURM_JOB_ID" || return 1
  warn "$1; job $SLURM_JOB_ID is queued again${2:+, $2}"
}
# Losses that this job of Slurm was queued again for, as a file of its output folder says: Slurm's
# own count has stops and preemptions, too.
attempt=0 losses=$output/.restarts
if [ $in_slurm = 1 ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -f "$losses" ]; then
  read -r job count <"$losses" || true
  [[ ! ($job == "$SLURM_JOB_ID" && $count =~ ^[0-9]{1,6}$) ]] || attempt=$count
fi
pause=1 status=0 resume=()
if [ $in_slurm = 1 ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ "$restarts$requeue" != 00 ]; then resume=("${again[@]}"); fi
command -v scontrol >/dev/null || in_slurm=0
while true; do
  [ "$signals" = 0 ] || exit $((status ? status : 75))
  start_mpi "${mpirun[@]}" "${places[@]}" "${command[@]}" "${resume[@]}"
  guard "$mpi_job" &
  guarding=$!
  status=0
  wait_mpi || status=$?
  kill $guarding 2>/dev/null || wait $guarding || [ $? != 9 ] || status=3
  # A scancel comes as SIGTERM; what goes to the ranks alone, as at a preemption, leaves this script
  # in peace.
  if [ "$status" = 75 ] && [ $requeue = 1 ] && [ $stopped = 0 ]; then
    queue_again "stopped by a signal after a checkpoint" || warn "Slurm does not queue job $SLURM_JOB_ID again (sbatch --requeue allows it)"
  fi
  if [ "$status" = 0 ] || [ "$signals" -gt 0 ] || [ "$restarts" = 0 ] || ! lost "$status"; then exit "$status"; fi
  [ ! -x "$doctor" ] || "$doctor" clean >/dev/null 2>&1 || true
  what="exit status $status$([ $told = 0 ] || echo ", its line stands above")"
  attempt=$((attempt + 1))
  if [ $attempt -gt "$restarts" ]; then
    warn "a rank was lost again ($what); --restarts $restarts are used up"
    exit "$status"
  fi
  if [ $in_slurm = 1 ]; then
    if mkdir -p "$output" && echo "$SLURM_JOB_ID $attempt" >"$losses" &&
      queue_again "a rank was lost ($what)" "start $attempt of $restarts"; then exit "$status"; fi
    warn "Slurm does not queue job $SLURM_JOB_ID again (sbatch --requeue allows it); starting again on the same nodes"
    in_slurm=0
  fi
  if [ $elastic = 1 ]; then
    silent=$(silent_hosts 5)
    [ -z "$(hosts_with_slots)" ] || go_on_without "${silent//$'\n'/ }"
  else
    while silent=$(silent_hosts 15) && [ -n "$silent" ] && [ "$signals" = 0 ]; do
      if [ $pause -gt 60 ]; then
        warn "no answer from ${silent//$'\n'/, } for over a minute; give hosts that answer, or --elastic to go on without"
        exit 3
      fi
      warn "no answer from ${silent//$'\n'/, }; asking again in $pause s"
      sleep $pause
      pause=$((pause * 2))
    done
  fi
  [ "$signals" = 0 ] || continue
  warn "a rank was lost ($what); start $attempt of $restarts, from the newest checkpoint, in $pause s"
  sleep $pause
  pause=$((pause * 2 > 60 ? 60 : pause * 2))
  resume=("${again[@]}")
done
