#!/usr/bin/env bash
# Starts a program on several ranks with the mpirun options that Starling recommends (docs/clusters.md says why each).
#   scripts/launch.sh [OPTION...] PROGRAM ARGUMENT...
#     -n N                  ranks; default: the slots of the hosts, or of the Slurm job
#     --hosts A:2,B:2       hosts and the ranks on each
#     --hostfile FILE       the same from a file with lines "A slots=2"
#     --cores K             cores that each rank gets for itself; default on this machine: cores / ranks, on other hosts: no binding
#     --interface NAMES     network interfaces or subnets for the traffic between hosts: "eth0", "10.0.0.0/24"
#     --start-timeout S     seconds until all ranks must have come together (default 120); then those that have not are named
#     --restarts N          after a lost rank or host, start again with --resume latest, N times at most; see docs/reliability.md
#     --elastic             with --restarts: go on without the hosts that do not answer, on fewer ranks
#     --dry-run             print the command, do not run it
# OMPI_MCA_* variables win over what this script would set. A SIGTERM to mpirun leaves the ranks OMPI_MCA_odls_base_sigkill_timeout (5)
# seconds to write a checkpoint. Exit status: mpirun's; 2 for bad arguments.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks="" hosts="" hostfile="" cores="" interface="" dry_run=0 restarts=0 elastic=0
value() { [ $# -ge 2 ] && [ -n "$2" ] || die "$1 needs a value; see the head of $0"; }
number() { case $2 in '' | *[!0-9]* | 0* | ???????*) die "$1 $2: a whole number from 1 to 999999 is needed" ;; esac }
while [ $# -gt 0 ]; do
  case $1 in
    -n | -np) value "$@" && number "$1" "$2" && ranks=$2 && shift ;;
    --hosts) value "$@" && hosts=$2 && shift ;;
    --hostfile) value "$@" && hostfile=$2 && shift ;;
    --cores) value "$@" && number "$1" "$2" && cores=$2 && shift ;;
    --interface) value "$@" && interface=$2 && shift ;;
    --start-timeout) value "$@" && number "$1" "$2" && export STARLING_START_TIMEOUT_S=$2 && shift ;;
    --restarts) value "$@" && number "$1" "$2" && restarts=$2 && shift ;;
    --elastic) elastic=1 ;;
    --dry-run) dry_run=1 ;;
    -h | --help)
      sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    --) shift && break ;;
    -*) die "unknown option $1; known: -n, --hosts, --hostfile, --cores, --interface, --start-timeout, --restarts, --elastic, --dry-run" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || die "no program; usage: $0 [OPTION...] PROGRAM ARGUMENT..."
[ -z "$hosts" ] || [ -z "$hostfile" ] || die "--hosts and --hostfile are given; one of them is needed"
[ $elastic = 0 ] || [ "$restarts" -gt 0 ] || die "--elastic is for --restarts N; a start by hand takes the program's own --resume … --elastic"
command -v mpirun >/dev/null || die "mpirun is missing; scripts/setup.sh installs it"
command -v "$1" >/dev/null || die "$1 is no program; build it first (scripts/train.sh builds starling-train)"

# "a:2 b:1": the hosts with their slots.
hosts_with_slots() {
  if [ -n "$hosts" ]; then
    for host in ${hosts//,/ }; do case $host in *:*) echo "$host" ;; *) echo "$host:1" ;; esac done
  elif [ -n "$hostfile" ]; then
    awk '{ sub(/#.*/, "") } NF { n = 1; for (i = 2; i <= NF; i++) if (sub(/^slots=/, "", $i)) n = $i; print $1 ":" n }' "$hostfile"
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
elif [ -n "${SLURM_JOB_ID:-}" ]; then
  slots=${SLURM_NTASKS:-}
fi
ranks=${ranks:-$slots}
[ -n "$ranks" ] || die "how many ranks? -n N, --hosts or --hostfile"

# Cores of this machine that this process may use, hyper-threads counted once.
my_cores=$(lscpu -p=CORE,SOCKET,CPU 2>/dev/null | awk -F, -v allowed="$(taskset -cp $$ 2>/dev/null | sed 's/.*: *//')" '
  BEGIN { m = split(allowed, part, ","); for (i = 1; i <= m; i++) { k = split(part[i], end, "-"); for (c = end[1]; c <= end[k]; c++) may[c] = 1 } }
  !/^#/ && (allowed == "" || $3 in may) { core[$1 "," $2] = 1 }
  END { for (c in core) n++; print n + 0 }')
[ "${my_cores:-0}" -gt 0 ] || my_cores=$(nproc)

mpirun=(mpirun)
[ "$(id -u)" != 0 ] || mpirun+=(--allow-run-as-root)
places=() # where the ranks go
if [ -n "$hosts" ]; then places+=(--host "$hosts"); fi
if [ -n "$hostfile" ]; then places+=(--hostfile "$hostfile"); fi
places+=(-n "$ranks")

one_machine=0
if [ -z "$hosts$hostfile" ] && [ -z "${SLURM_JOB_ID:-}" ]; then one_machine=1; fi
if [ $one_machine = 1 ]; then slots=$my_cores; fi
if [ -n "$slots" ] && [ "$ranks" -gt "$slots" ]; then places+=(--oversubscribe); fi
command=() # the rest

# A rank computes and communicates in threads of its own: bound to a single core (mpirun's default for two ranks) they would share it.
if [ -z "$cores" ] && [ $one_machine = 1 ] && [ $((my_cores / ranks)) -ge 2 ]; then cores=$((my_cores / ranks)); fi
if [ -n "${OMPI_MCA_hwloc_base_binding_policy:-}" ]; then
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
setting btl_tcp_flags send,inplace,need-ack,need-csum,hetero-rdma # without PUT, which makes a pair exchange half-duplex
setting mpi_yield_when_idle 1                                     # a waiting thread leaves the core to the computation
setting odls_base_sigkill_timeout 5                               # seconds for a checkpoint after SIGTERM
if [ $one_machine = 0 ]; then
  if [ -n "$interface" ]; then
    setting btl_tcp_if_include "$interface"
    setting oob_tcp_if_include "$interface"
  fi
  # What ranks on other hosts need to know of this shell.
  while IFS= read -r name; do command+=(-x "$name"); done < <(compgen -e | grep -E '^(LD_LIBRARY_PATH|STARLING_.*|NCCL_.*|OMP_.*)$' || true)
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
# A signal to this script goes to mpirun, and ends all.
stopped=0
for signal in TERM INT HUP USR1 USR2; do
  # shellcheck disable=SC2064 # the signal's name is known now
  trap "stopped=1; signals=\$((signals + 1)); [ -z \"\$mpi_job\" ] || kill -$signal \$mpi_job 2>/dev/null" $signal
done
if [ "$restarts" = 0 ]; then
  start_mpi "${mpirun[@]}" "${places[@]}" "${command[@]}"
  status=0
  wait_mpi || status=$?
  exit "$status"
fi

# Starts again what lost a rank.
case " ${command[*]} " in *" --output "* | *" --resume "*) ;; *) die "--restarts needs the program's --output DIR: what would it go on from?" ;; esac
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
# guard PID SECONDS: ends an mpirun whose ranks on this machine have all been gone for so long. Open MPI 4 waits long for a host that went,
# and for good where it missed the end of a rank that was killed while it started. A run that was through is not harmed: it has nothing left.
guard() {
  local seen=0 gone=0 pid here
  while sleep 1 && kill -0 "$1" 2>/dev/null; do
    here=0
    for pid in $(ps -o pid= --ppid "$1"); do
      if grep -qsz '^OMPI_COMM_WORLD_RANK=' "/proc/$pid/environ"; then here=1; fi
    done
    if [ $here = 1 ]; then seen=1 gone=0; else gone=$((gone + seen)); fi
    if [ $gone -ge "$2" ]; then
      warn "mpirun is still there $2 s after the last rank of this machine; ending it"
      kill -KILL "$1"
      gone=0
    fi
  done
}

lost() { # STATUS: a rank or host is gone (3), or a signal has ended one that mpirun reports so; a user's own signals are none
  case $1 in 3) return 0 ;; 130 | 143) return 1 ;; *) [ "$1" -gt 128 ] ;; esac
}
again=(--resume latest)
[ $elastic = 0 ] || again+=(--elastic)
case " ${command[*]} " in *" --resume "*) again=("${again[@]:2}") ;; esac
attempt=0 pause=1 status=0 resume=()
in_slurm=0
if [ -n "${SLURM_JOB_ID:-}" ] && [ -z "$hosts$hostfile" ] && command -v scontrol >/dev/null; then in_slurm=1; fi
if [ $in_slurm = 1 ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then resume=("${again[@]}"); fi
while true; do
  start_mpi "${mpirun[@]}" "${places[@]}" "${command[@]}" "${resume[@]}"
  guard "$mpi_job" $((one_machine ? 10 : 5)) &
  guarding=$!
  status=0
  wait_mpi || status=$?
  kill $guarding 2>/dev/null || true
  [ ! -x "$doctor" ] || [ "$status" = 0 ] || "$doctor" clean >/dev/null 2>&1 || true
  if [ "$status" = 0 ] || [ $stopped = 1 ] || ! lost "$status"; then exit "$status"; fi
  if [ $in_slurm = 1 ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$restarts" ]; then
      warn "a rank was lost again (exit status $status); --restarts $restarts are used up"
      exit "$status"
    fi
    # The nodes of this job may be the trouble; Slurm gives the next start others.
    if scontrol requeue "$SLURM_JOB_ID"; then
      warn "a rank was lost (exit status $status, its line stands above); job $SLURM_JOB_ID is queued again, start $((${SLURM_RESTART_COUNT:-0} + 1)) of $restarts"
      exit "$status"
    fi
    warn "Slurm does not queue job $SLURM_JOB_ID again (sbatch --requeue allows it); starting again on the same nodes"
    in_slurm=0
  fi
  attempt=$((attempt + 1))
  if [ $attempt -gt "$restarts" ]; then
    warn "a rank was lost again (exit status $status); --restarts $restarts are used up"
    exit "$status"
  fi
  if [ $elastic = 1 ]; then
    silent=$(silent_hosts 5)
    [ -z "$(hosts_with_slots)" ] || go_on_without "${silent//$'\n'/ }"
  else
    while silent=$(silent_hosts 15) && [ -n "$silent" ] && [ $stopped = 0 ]; do
      if [ $pause -gt 60 ]; then
        warn "no answer from ${silent//$'\n'/, } for over a minute; give hosts that answer, or --elastic to go on without"
        exit 3
      fi
      warn "no answer from ${silent//$'\n'/, }; asking again in $pause s"
      sleep $pause
      pause=$((pause * 2))
    done
  fi
  [ $stopped = 0 ] || exit "$status"
  warn "a rank was lost (exit status $status, its line stands above); start $attempt of $restarts, from the newest checkpoint, in $pause s"
  sleep $pause
  pause=$((pause * 2 > 60 ? 60 : pause * 2))
  resume=("${again[@]}")
done
