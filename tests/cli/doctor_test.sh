#!/usr/bin/env bash
# Ranks that crash, raise an error, are killed, stopped, hang, or issue other things than the rest:
# what each leaves, and that `starling-doctor blame` names the right one. Then ranks whose memory is
# wrong without a word: sync.verify.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export doctor=$build/bin/starling-doctor
config '{"type": "mlp", "hidden": [32, 32]}' '  "batch_size": 16,
  "steps": 1000000,
  "plugins": ["./libfaulty.so"],
  "optimizer": {"type": "sgd", "lr": 0.001},
  "checkpoint": {"every_epochs": 0},
  "sync": {"timeout_s": 2, "bucket_mb": 0.001, "transport": "mpi"},' >faulty.json
check "the plug-in of this test is built" 0 "" ${CXX:-c++} -std=c++20 -g -fPIC -shared -I"$root" -I"$root/apps" -I"$build/apps/generated" "$root"/{tests/cli/faulty_plugin,cmake/plugin_stamp}.cpp -o libfaulty.so

faulty() { # NAME RANKS FAULT OPTION...: trains with the fault on rank 1 in step 25
  local name=$1 count=$2 fault=$3
  shift 3
  ranks "$count" "$train" faulty.json --set "sync.algorithm={\"type\": \"faulty\", \"fault\": \"$fault\", \"rank\": 1, \"at\": 25}" \
    --output "$name" "$@"
}
export -f faulty
blame() { "$doctor" blame "$1"; }
export -f blame
three_lines() { blame "$1" >lines && cat lines && [ "$(wc -l <lines)" = 3 ]; }

check "a crash leaves a line with rank, step and functions, and the signal's status" 139 \
  "^rank 1: \[crash\] SIGSEGV at address 0x0 in step 25; stack: faulty::write_to_nowhere < faulty::Faulty::go_wrong < faulty::Faulty::begin < .*starling::TrainingRun::run < .*starling::train_main < .*; the last events are in .*null/flight/rank-1.jsonl$" \
  faulty null 3 null
verify "and its record" grep -q '"reason":"crash","exit":139,"step":25,"text":"\[crash\] SIGSEGV' null/flight/rank-1.jsonl
verify "as have those that noticed" test -s null/flight/rank-0.jsonl
check "the doctor names it" 0 "^cause: rank 1 on host .* crashed at .*write_to_nowhere" blame null
verify "in three lines" three_lines null
check "std::terminate" "134" "^rank 1: \[crash\] SIGABRT, terminated: nobody catches this in step 25; stack: .* < faulty::throw_where_nobody_catches < faulty::Faulty::go_wrong < " faulty terminate 2 terminate
check "the doctor names it" 0 "^cause: rank 1 on host .* crashed at .*nobody catches this" blame terminate
check "alone, too" 139 "\[crash\] SIGSEGV" "$train" faulty.json --set 'sync.algorithm={"type": "faulty", "fault": "null", "rank": 0, "at": 3}' --output alone
check "an error" 5 "rank 1: \[faulty\] the disk of rank 1 is full" faulty error 3 error
check "the doctor tells it" 0 "^cause: rank 1 on host .* failed at .*the disk of rank 1 is full" blame error
check "a rank that hangs" 3 "waited 2 s" faulty hang 3 hang
check "the doctor says who waits for it" 0 "^waits: .*rank.* for rank 1 since .* \(.*step 25" blame hang
verify "and that it is the cause" bash -c 'cat .stdout; grep -qE "^cause: rank 1\\b" .stdout'
verify "in three lines" three_lines hang
check "a rank that calls what others do not" 3 "waited 2 s" faulty call 2 call
check "the doctor says what each issued" 0 "^order: ranks diverge at .*rank [01] (waits for|called) .* where rank [01] (waits for|called) .*" blame call
verify "and that they wait for each other" grep -q "^cause: ranks 0 and 1 wait for each other, because they issued different operations" .stdout
check "a rank that issues another exchange" "1|3" "" faulty order 2 order
check "the doctor says which" 0 "^order: ranks diverge at .*: after the numbers of step 25 rank 0 issued the exchange of step 25, bucket 0 where rank 1 issued the exchange of step 25, bucket 7" blame order

process_of() { # FOLDER RANK
  pgrep -f -- "--output $1\$" | while read -r id; do
    tr '\0' '\n' <"/proc/$id/environ" 2>/dev/null | grep -q "^OMPI_COMM_WORLD_RANK=$2\$" && echo "$id"
  done | head -1
}
signalled() { # NAME SIGNAL: a run of 3, whose rank 2 gets the signal
  local pid
  ranks 3 "$train" faulty.json --set sync.timeout_s=2 --set sync.algorithm=gossip --set sync.transport=direct --output "$1" >"$1.log" 2>&1 &
  wait_for_lines "$1" 5 || failed "$1: trains"
  pid=$(process_of "$1" 2)
  kill -"$2" "$pid"
}
signalled killed KILL
wait
check "a killed rank leaves none, and the doctor says so" 0 "^cause: rank 2 ended or went silent, as rank.* noticed, and left no record: killed" blame killed
signalled stopped STOP
wait
check "a stopped rank is named" 0 "^cause: rank 2( left no record)?: stopped, as rank [01] saw; " blame stopped
verify "with who waits for it" grep -qE "^waits: .*rank.* for rank 2 since" .stdout
verify "and said in the errors" grep -q "rank 2 .*its process [0-9]* is stopped, by SIGSTOP or a debugger" stopped.log

signalled asked QUIT
sleep 0.5
verify "SIGQUIT has the record written" grep -q '"reason":"asked"' asked/flight/rank-2.jsonl
before=$(wc -l <asked/metrics.jsonl)
wait_for_lines asked $((before + 5)) || failed "training goes on after SIGQUIT"
verify "in a line" grep -q "the last events are in .*asked/flight/rank-2.jsonl; training goes on" asked.log
kill -USR1 "$(process_of asked 0)"
wait
verify "a run that was stopped writes no more" bash -c '[ "$(ls asked/flight)" = rank-2.jsonl ]'

check "at the end where asked" 0 "done: model" ranks 2 "$train" faulty.json --set steps=5 --set flight_recorder=end --set sync.algorithm=gossip --output end
check "then nothing is wrong" 0 "^cause: none, nothing went wrong" blame end
check "and otherwise not" 0 "done: model" ranks 2 "$train" faulty.json --set steps=5 --set sync.algorithm=gossip --output on
verify "there is no folder" test ! -e on/flight
check "resumed" 0 "done: model" ranks 2 "$train" faulty.json --set steps=8 --set sync.algorithm=gossip --output end --resume latest
check "the doctor says of which start its records are" 0 "records of the run started 20.*; the newest start left no record" blame end
verify "what was there stays beside" test -s end/flight.before/rank-1.jsonl -a ! -e end/flight
check "off" 139 "\[crash\] SIGSEGV .* in step -?[0-9]+|\[crash\] SIGSEGV" faulty off 2 null --set flight_recorder=off
verify "no record then" test ! -e off/flight

cp -r null cut
head -c 1000 null/flight/rank-0.jsonl >cut/flight/rank-0.jsonl
check "a damaged record is named, and the rest told" 2 "^starling-doctor: .*cut/flight/rank-0.jsonl: .*damaged" blame cut
verify "the cause from the others" grep -q "^cause: rank 1 on host .* crashed" .stdout
check "no records" 2 "^starling-doctor: \[doctor\] on: no rank has left a flight record here" blame on
check "no folder" 2 "nothing-here: is no folder" blame nothing-here

# A look at the hosts, before anything is trained.
check "one rank" 0 "^0 faults" "$doctor" check
check "two" 0 '^ok +network +inside the host [0-9]+ µs and' ranks 2 "$doctor" check
check "as JSON" 0 '"ok": true' ranks 2 "$doctor" check --json
check "more ranks than cores" 0 '^warning +cores +.*: [0-9]+ ranks share [0-9]+ core' ranks $(($(nproc --all) + 1)) "$doctor" check
check "a folder that is not there" 2 '^fault +folder +.*nowhere cannot be written: No such file' "$doctor" check --folder nowhere
verify "nothing is left of it" bash -c '! ls -a | grep starling-doctor'
check "no subcommand" 2 "A subcommand is required" "$doctor"

# A bit flips in step 25 (counted from 0) in one of three replicas.
check "a wrong bit is found at the next check, and the rank named" 3 "\[verify\] after step 30 rank 1 on host .* is not what the other 2 ranks hold, in '[^']*'" \
  faulty bit 3 bit --set sync.verify=10
verify "by one line" bash -c '[ "$(grep -c "\[verify\]" .stderr)" = 1 ]'
check "the doctor tells it" 0 "^cause: .*after step 30 rank 1 on host" blame bit
check "before a checkpoint" 3 "\[verify\] after step 40 rank 1 on host" faulty saves 3 bit --set sync.verify=checkpoint --set checkpoint.every_steps=20
verify "which is then not made" bash -c 'test -e saves/checkpoints/step-20/DONE -a ! -e saves/checkpoints/step-40/DONE'
check "of two ranks both are named" 3 "rank 0 on host .* and rank 1 on host .* differ in .* it cannot be known which is right" faulty two 2 bit --set sync.verify=26
check "without it nobody notices" 0 "done: model" faulty unnoticed 3 bit --set steps=40
check "and a sound run passes" 0 "done: model" faulty sound 3 none --set steps=40 --set sync.verify=1
check "as does gossip" 0 "done: model" ranks 4 "$train" faulty.json --set steps=40 --set sync.algorithm=gossip --set sync.verify=1 --output gossip
verify "metrics name the slowest rank" bash -c 'grep -q "\"slowest_rank\":[0-3],\"slowest_rank_ms\":" gossip/metrics.jsonl || head -2 gossip/metrics.jsonl | grep -q slowest_rank'
finish
