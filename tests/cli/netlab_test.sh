#!/usr/bin/env bash
# ctest: longer at night, alone
# Training across emulated hosts (scripts/netlab): bits, mismatched hosts, and that netlab cleans
# up; at night slow, cut and stalled links, ports and lost hosts too.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export netlab=$root/scripts/netlab/netlab
export NETLAB_NAME=t$$
end() {
  local name
  for name in "t$$" "t$$b" "t$$e"; do NETLAB_NAME=$name "$netlab" down >/dev/null 2>&1; done
  rm -rf "$work"
}
trap end EXIT
"$netlab" up 2 1000 >.out 2>&1
status=$?
if [ $status = 77 ]; then
  echo "SKIPPED: $(cat .out)"
  exit 77
fi
small_config
sed -i 's/"batch_size": 16/"batch_size": 16, "threads": 1/' small.json

# the tool
check "the lab is up" 0 "^host1 10\.77\.0\.2 1000 Mbit/s 0 us link UP" "$netlab" show
check "no number of hosts" 2 "1 to 64 hosts" "$netlab" up many
check "a rate that is none" 2 "whole number" "$netlab" rate host1 fast
check "a host that is not there" 2 "'host7' is no host; there are host0 to host1" "$netlab" rate host7 10
check "an unknown state of a link" 2 "up\|down\|stall" "$netlab" link 1 broken
check "a lossy link without a switch of its own" 2 "in labs with a delay alone" "$netlab" loss 1 5
check "a share that is none" 2 "whole number, not 'some'" "$netlab" jitter 1 some
check "no program" 2 "RANKS_PER_HOST PROGRAM" "$netlab" run 1
check "help for an unknown word" 2 "netlab run RANKS" "$netlab" start
check "no lab of that name" 2 "no hosts are up" env NETLAB_NAME=t$$x "$netlab" run 1 hostname
check "hosts have names" 0 "^host1$" "$netlab" run 1 hostname
check "hosts may have processes of their own" 0 "^[0-9]$" env NETLAB_PROCESSES=own "$netlab" run 1 bash -c 'ls -d /proc/[0-9]* | wc -l'
check "a command on one host" 0 "^host1$" "$netlab" exec 1 hostname
check "a program's status comes back" 2 "no-such\.json" "$netlab" run 1 "$train" no-such.json
if command -v setpriv >/dev/null; then
  check "without root" 77 "not possible on this machine: .*root" setpriv --reuid 65534 --clear-groups "$netlab" up 2
fi

# the same bits as on one host
for transport in auto mpi zeromq; do
  check "2 hosts, 1 rank each, transport $transport" 0 "done" "$netlab" run 1 "$train" small.json --set sync.transport=$transport --output hosts-$transport
done
export doctor=$build/bin/starling-doctor
check "the doctor looks at two hosts" '0|2' '^ok +network +between hosts [0-9]+ µs and (0\.[5-9]|1(\.[0-2])? )' "$netlab" run 1 "$doctor" check
check "and says by which interfaces they meet" '0|2' '"host1": "eth0"' "$netlab" run 1 "$doctor" check --json
"$netlab" exec 1 ip link set dev eth0 mtu 1400
check "MTUs that differ" '0|2' '^warning +MTU +differs between hosts: 1400, 1500' "$netlab" run 1 "$doctor" check
"$netlab" exec 1 ip link set dev eth0 mtu 1500
check "2 ranks on one host" 0 "done" ranks 2 "$train" small.json --output one
verify "the same losses" same_losses one hosts-auto
verify "the same model" same_model one/model.safetensors hosts-auto/model.safetensors
for transport in mpi zeromq; do
  verify "the same model over $transport" same_model one/model.safetensors hosts-$transport/model.safetensors
done
if nightly; then
for topology in base-2 complete; do
  check "2 hosts, 2 ranks each, $topology" 0 "done" "$netlab" run 2 "$train" small.json --set sync.topology.type=$topology --output hosts-$topology
  check "4 ranks on one host, $topology" 0 "done" ranks 4 "$train" small.json --set sync.topology.type=$topology --output one-$topology
  verify "the same model of 2 x 2, $topology" same_model one-$topology/model.safetensors hosts-$topology/model.safetensors
done
check "bf16 on the wire, 2 hosts" 0 "done" "$netlab" run 1 "$train" small.json --set sync.exchange=bf16 --output hosts-bf16
check "bf16 on the wire, one host" 0 "done" ranks 2 "$train" small.json --set sync.exchange=bf16 --output one-bf16
verify "the same model in bf16" same_model one-bf16/model.safetensors hosts-bf16/model.safetensors
verify "but not that of fp32" bash -c '! same_model one/model.safetensors one-bf16/model.safetensors'

# scripts/launch.sh with a host file, through a firewall's ports: one end of every connection
# between hosts is on one of them
printf 'host0 slots=2\nhost1 slots=2\n' >hosts
launch() {
  "$netlab" exec 0 env OMPI_MCA_plm_rsh_agent="$root/scripts/netlab/netlab-agent" OMPI_MCA_orte_keep_fqdn_hostnames=1 \
    OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_oob_tcp_dynamic_ipv4_ports=47000-47009 OMPI_MCA_btl_tcp_port_min_v4=46000 \
    OMPI_MCA_btl_tcp_port_range_v4=100 "$root/scripts/launch.sh" --hostfile hosts --interface 10.77.0.0/24 "$train" small.json "$@"
}
launch --output launched >launched.log 2>&1
verify "launch.sh across hosts" grep done launched.log
verify "the same model by launch.sh" same_model one-base-2/model.safetensors launched/model.safetensors
if command -v ss >/dev/null; then
  launch --set steps=1500 --set log_every=100 --output ports >/dev/null 2>&1 &
  launched=$!
  while kill -0 $launched 2>/dev/null; do
    "$netlab" exec 0 ss -tnH state established dst 10.77.0.2 >>connections
    sleep 0.1
  done
  verify "there are connections" test -s connections
  verify "all on the ports that were given" bash -c '! grep -vE ":(46[0-9]{3}|4700[0-9])( |$)" connections'
fi

# one link slower than the other
"$netlab" rate 1 20
check "one slow link" 0 "done" "$netlab" run 1 "$train" small.json --output slow
verify "the same model over a slow link" same_model one/model.safetensors slow/model.safetensors
verify "400 kB a step at 20 Mbit/s take their time" awk "BEGIN { exit !($(json_number slow/summary.json train_seconds) > 1) }"
"$netlab" rate 1 1000
fi

# hosts that do not fit together
cat >elsewhere.sh <<'END'
[ "$(hostname)" = host0 ] || set -- "$@" --set batch_size=32
exec "$@"
END
check "hosts with different configs" 2 "batch_size is 16 on rank 0 \(host host0\) and 32 on rank 1 \(host host1\)" \
  "$netlab" run 1 bash elsewhere.sh "$train" small.json --output different
# The same program with another oneDNN, as far as it says.
echo 'extern "C" const int* dnnl_version() { static const int version[16] = {9, 8, 7}; return version; }' >other.cpp
if "${CXX:-g++}" -shared -fPIC -o libother.so other.cpp; then
  cat >elsewhere.sh <<'END'
[ "$(hostname)" = host0 ] || export LD_PRELOAD=$PWD/libother.so
exec "$@"
END
  check "hosts with different builds" 2 "different builds: rank 0 on host host0 has 'oneDNN .*', rank 1 on host host1 has 'oneDNN 9\.8\.7'" \
    "$netlab" run 1 bash elsewhere.sh "$train" small.json --output different
fi
verify "neither left an output folder" test ! -e different

sed 's/"steps": 12/"steps": 10000000/' small.json >long.json
if nightly; then
# a link that is cut, and one that stalls, in two labs at once
cat >rank.sh <<'END' # NAME ARGUMENTS...: a rank whose status and words survive a cut
name=$1-$OMPI_COMM_WORLD_RANK
shift
"$train" "$@" 2>"$name.err"
status=$?
echo "$status $(date +%s)" >"$name.status"
exit $status
END
# NAME LAB STATE: trains in the lab until there are metrics, then sets the link of host1
break_link() {
  local name=$1 i
  export NETLAB_NAME=$2
  [ "$2" = "t$$" ] || "$netlab" up 2 1000 || return
  timeout -s KILL 90 "$netlab" run 1 bash rank.sh "$name" long.json --set sync.timeout_s=3 --output "$name" >"$name.log" 2>&1 &
  local run=$!
  wait_for_lines "$name" 5
  # mpirun ends soon after its ranks
  for i in 0 1; do "$netlab" exec $i sh -c 'echo 4 >/proc/sys/net/ipv4/tcp_retries2'; done
  "$netlab" link 1 "$3"
  date +%s >"$name.broken"
  wait $run
  echo $? >"$name.rc"
}
break_link cut "t$$" down &
cutting=$!
break_link stall "t$$b" stall &
wait $cutting $!
# PATTERN FILE, which is shown where it does not
says() { grep -qE "$1" "$2" || { cat "$2" && false; }; }
for name in cut stall; do
  cat "$name.log" "$name"-*.err "$name"-*.status >.out 2>&1
  verify "$name: mpirun ends with 3" grep -qx 3 "$name.rc"
  for rank in 0 1; do
    cat "$name-$rank.err" "$name-$rank.status" >.out 2>&1
    verify "$name: rank $rank ends with 3" grep -q '^3 ' "$name-$rank.status"
    verify "$name: rank $rank ends in time" awk "NR == 1 { exit !(\$2 - $(cat "$name.broken") <= 12) }" "$name-$rank.status"
    verify "$name: rank $rank names whom it waited for" says \
      "rank $rank waited 3 s .*host$rank for (the exchange of step [0-9]+, bucket 0, round [0-9]+ with rank $((1 - rank))|the sum over all ranks of the numbers of step [0-9]+); missing: rank $((1 - rank)) on host host$((1 - rank)) last heard of" \
      "$name-$rank.err"
  done
done

# a host that is lost for good: the others go on without it
sed 's/"steps": 12/"steps": 400/; s/"checkpoint": {"every_epochs": 0}/"checkpoint": {"every_steps": 20}/' small.json >elastic.json
export NETLAB_NAME=t$$e
"$netlab" up 3 1000
env NETLAB_PROCESSES=own "$netlab" exec 0 env OMPI_MCA_plm_rsh_agent="$root/scripts/netlab/netlab-agent" OMPI_MCA_orte_keep_fqdn_hostnames=1 \
  OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_orte_leave_session_attached=1 \
  timeout -s KILL 150 "$root/scripts/launch.sh" --restarts 1 --elastic --hosts host0:2,host1:1,host2:1 --interface 10.77.0.0/24 \
  "$train" elastic.json --set sync.heartbeat_s=3 --output elastic >elastic.log 2>&1 &
launched=$!
wait_for_lines elastic 30 || failed "three hosts train"
"$netlab" link 2 down
wait $launched
echo $? >elastic.rc
verify "the job ends well without the host" grep -qx 0 elastic.rc
verify "it says which is left out" says "no answer from host2: going on with 3 of 4 ranks, on host0:2,host1:1" elastic.log
verify "and with what it goes on" says "elastic: from step [0-9]+ on 3 ranks in place of 4, batch_size 21 in place of 16" elastic.log
verify "the lost rank was named" says "rank 3 on host host2 has given no sign of life" elastic.log
verify "the summary has the ranks" bash -c "tr -d ' \n' <elastic/summary.json | grep -q '\"elastic\":{\"from_ranks\":4'"
"$netlab" down
export NETLAB_NAME=t$$
fi

# a start that cannot be, as mpirun's helpers do not get through; or the ranks, which take an
# address that both hosts have
start() {
  "$netlab" exec 0 env OMPI_MCA_plm_rsh_agent="$root/scripts/netlab/netlab-agent" OMPI_MCA_orte_keep_fqdn_hostnames=1 OMPI_MCA_plm_rsh_no_tree_spawn=1 \
    "$launch" --start-timeout=3 --hosts=host0:1,host1:1 "$train" small.json --output never
}
export -f start
export root launch=$root/scripts/launch.sh
"$netlab" link 1 stall
check "no way for mpirun" 3 "after 3 s .* no rank on host0, while it waits for its helpers on host1; .*--interface" start
"$netlab" link 1 up
for i in 0 1; do
  "$netlab" exec $i sh -c 'ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up'
done
check "an address that both have" 3 "after 3 s .*on host host0 rank 0 is here \\(1 of 1\\).*hosts host0:1,host1:1.*--interface .*docker0's 172.17.0.1" start

# a job that is killed leaves nothing
"$netlab" link 1 up
"$netlab" run 1 "$train" long.json --output killed >killed.log 2>&1 &
pid=$!
wait_for_lines killed 1
check "a lab in use is not replaced" 2 "something runs in it" "$netlab" up 2
kill -KILL $pid
wait $pid 2>/dev/null
verify "down after a kill" "$netlab" down
verify "no namespace is left" bash -c "! ip netns list | grep -q '^t$$-'"
verify "no process is left" bash -c "! pgrep -f -- '[-]-output killed'"
verify "no file is left" bash -c "! ls -d /run/netlab/t$$ /dev/shm/netlab-t$$.* /etc/netns/t$$-* 2>/dev/null"
verify "down twice" "$netlab" down
finish
