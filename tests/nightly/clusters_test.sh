#!/usr/bin/env bash
# Two and three hosts as users have them: names of their own, ssh, a firewall, docker's bridge with
# one address on all. scripts/launch.sh and the page's scripts of PBS and LSF train there.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
unset SLURM_JOB_ID PBS_NODEFILE LSB_DJOB_HOSTFILE OMPI_MCA_orte_default_hostfile
export netlab=$root/scripts/netlab/netlab launch=$root/scripts/launch.sh NETLAB_NAME=c$$ HWLOC_HIDE_ERRORS=2
end() {
  "$netlab" down >/dev/null 2>&1
  rm -rf "$work"
}
trap end EXIT
"$netlab" up 3 1000 >.out 2>&1 && "$netlab" ssh >>.out 2>&1
status=$?
if [ $status = 77 ]; then
  echo "SKIPPED: $(cat .out)"
  exit 77
fi
small_config
sed -i 's/"batch_size": 16/"batch_size": 16, "threads": 1/' small.json
on() { "$netlab" exec "$@"; }
export -f on
verify "the lab is up, with ssh" test $status = 0
check "ssh reaches a host by its name" 0 "^host2$" on 0 ssh host2 hostname
for i in 0 1 2; do
  on $i sh -c 'ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up'
done

# trains NAME RANKS COMMAND...: from the first host, over the interface that leads to the others.
trains() {
  local name=$1 ranks=$2
  shift 2
  check "$name" 0 "$ranks ranks on" on 0 "$@"
}
trains "three hosts" 3 "$launch" --hosts host0:1,host1:1,host2:1 --interface eth0 "$train" small.json --output three
trains "two, by the subnet" 4 "$launch" --hosts host0:2,host1:2 --interface 10.77.0.0/24 "$train" small.json --output two
verify "the model is that of one host" bash -c 'ranks 4 "$train" small.json --output one >/dev/null && same_model one/model.safetensors two/model.safetensors'
check "the doctor finds docker's address" '0|2' "docker0|172\.17\.0\.1" on 0 mpirun --allow-run-as-root --host host0:1,host1:1 --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 "$build/bin/starling-doctor" check
printf 'host1 slots=1\nhost2 slots=1\n' >hosts
trains "a host file, from a host that is not in it" 2 "$launch" --hostfile hosts --interface eth0 "$train" small.json --output file

# the scripts of examples/cluster, on these hosts
export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
printf 'host0\nhost0\nhost1\nhost2\n' >nodes
for kind in PBS LSF; do
  sed "s|scripts/launch.sh|$root/&|; s|build/bin/starling-train|$train|; s|configs/[a-z0-9_]*.json|small.json|
    s|/shared/runs/one|$kind|" "$root/examples/cluster/${kind,,}.sh" >$kind.job
done
trains "PBS" 4 env PBS_NODEFILE="$work/nodes" PBS_O_WORKDIR="$work" bash PBS.job
trains "LSF" 4 env LSB_DJOB_HOSTFILE="$work/nodes" LS_SUBCWD="$work" bash LSF.job
stops() { # SIGNAL: to the job's script, as the batch system sends it
  local pid
  sed -i 's/"steps": 12/"steps": 10000000/' small.json
  PBS_NODEFILE=$work/nodes PBS_O_WORKDIR=$work "$netlab" exec 0 bash PBS.job >stop.log 2>&1 &
  pid=$!
  wait_for_lines PBS 20
  kill -"$1" $pid
  wait $pid
  [ $? = 75 ] && grep -q 'stopped by a signal after a checkpoint' stop.log || { cat stop.log && return 1; }
}
verify "SIGTERM to the job has its ranks save on all hosts" stops TERM
sed -i 's/"steps": 10000000/"steps": 12/' small.json

# a firewall that lets ssh and the page's ports through; then one that forgets the ranks' own
eval "$(sed -n 's/^export \(OMPI_MCA_[bo][a-z]*_tcp_[a-z0-9_]*port.*\)$/export \1/p' "$root/docs/clusters.md")"
ranks_ports=$OMPI_MCA_btl_tcp_port_min_v4-$((OMPI_MCA_btl_tcp_port_min_v4 + OMPI_MCA_btl_tcp_port_range_v4 - 1))
verify "a firewall" "$netlab" firewall "22,$OMPI_MCA_oob_tcp_dynamic_ipv4_ports,$ranks_ports"
trains "with the page's ports" 3 "$launch" --hosts host0:1,host1:1,host2:1 "$train" small.json --output through
verify "a firewall without the ranks' ports" "$netlab" firewall "22,$OMPI_MCA_oob_tcp_dynamic_ipv4_ports"
check "names who is missing, and firewalls" 3 "\[start\] after 8 s MPI has not brought the 2 ranks together.*firewalls" \
  on 0 "$launch" --start-timeout 8 --hosts host0:1,host1:1 "$train" small.json --output closed
verify "a firewall without the launcher's ports" "$netlab" firewall "22,$ranks_ports"
check "says that mpirun waits for its helpers" 3 "waits for its helpers on host1.*firewalls" \
  on 0 "$launch" --start-timeout 5 --hosts host0:1,host1:1 "$train" small.json --output closed
verify "no firewall any more" "$netlab" firewall off
trains "and all is well again" 2 "$launch" --hosts host0:1,host1:1 "$train" small.json --output again
check "ports that are none" 2 "numbers and ranges" "$netlab" firewall all
finish
