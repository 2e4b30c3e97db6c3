#!/usr/bin/env bash
# ctest: alone
# starling-topo measure and plan, and the trainer's "auto".
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export topo=$build/bin/starling-topo

check "a plan from figures" 0 '^\* alternating-exp-ring ' "$topo" plan --ranks 4 --bandwidth 0.5 --step-ms 300 --parameters 11.2
check "a recommendation with its reason" 0 '^recommended: alternating-exp-ring, bucket_mb .*the network is the limit' "$topo" plan --ranks 4 --bandwidth 0.5 --step-ms 300 --parameters 11.2
check "all-reduce where it is as good" 0 '^recommended: all-reduce' "$topo" plan --ranks 4 --bandwidth 400 --latency 1 --step-ms 300
check "the link's load" 0 '8 ranks on 2 hosts; between hosts 10 Gbit/s' "$topo" plan --ranks 8 --ranks-per-node 4 --bandwidth 10
check "replicas count as ranks" 0 '^4 replicas of 2 ranks on 2 hosts' "$topo" plan --ranks 8 --ranks-per-node 4 --replica 2 --bandwidth 10
verify "with nothing that their ranks cannot do" bash -c '! grep -q asynchronous .stdout'
check "replicas that do not divide a host" 2 '--replica 3 does not divide the 8 ranks, 4 on a host' "$topo" plan --ranks 8 --ranks-per-node 4 --replica 3
check "4,096 ranks" 0 '^recommended: ' "$topo" plan --ranks 4096 --ranks-per-node 8 --bandwidth 100
check "one rank" 0 '^recommended: all-reduce' "$topo" plan --ranks 1
verify "JSON" bash -c '"$topo" plan --ranks 6 --ranks-per-node 3 --json | python3 -c "import json, sys; json.load(sys.stdin)[\"recommended\"][\"topology\"]"'
check "no network" 2 'plan needs --measured FILE, or --ranks N' "$topo" plan
check "a missing file" 2 'no.json' "$topo" plan --measured no.json
echo '{"ranks": 2}' >bad.json
check "a file of something else" 2 "bad.json: 'ranks_per_node' must be there" "$topo" plan --measured bad.json
check "bf16 on the wire halves what is sent" 0 '^true$' bash -c '
  sent() { "$topo" plan --ranks 4 --bandwidth 1 --json "$@" | python3 -c "import json, sys; print([c[\"bytes_sent\"] for c in json.load(sys.stdin)[\"choices\"] if c[\"topology\"] == \"one-peer-exp\"][0])"; }
  python3 -c "print(str(abs($(sent --exchange bf16) / $(sent) - 0.5) < 1e-6).lower())"'
check "a misspelt option" 2 "bandwith 1; did you mean '--bandwidth'" "$topo" plan --ranks 4 --bandwith 1
check "measuring alone" 2 'mpirun -n 2 starling-topo measure' "$topo" measure

check "measuring 2 ranks" 0 '"latency_us"' ranks 2 "$topo" measure --seconds 0.5 --output net.json
check "a plan from what was measured" 0 '^2 ranks on 1 host' "$topo" plan --measured net.json --step-ms 20
sed -E 's/"noise": [0-9.e-]+/"noise": 0.4/' net.json >busy.json
check "one that was measured while others had the cores" 0 '^disturbed: the machine was busy, and what was measured may be off by 40 %, so .* may be as good; measure again' "$topo" plan --measured busy.json --step-ms 20
sed -E 's/"noise": [0-9.e-]+/"noise": 0.05/' net.json >idle.json
check "of an idle machine" 0 '^recommended' "$topo" plan --measured idle.json --step-ms 20
verify "nothing of the kind is said" bash -c '! grep -q disturbed .stdout'
check "long times and large numbers, as people write them" 0 '^\* .* [0-9.]+ (min|h) .* [0-9.]+ GB ' "$topo" plan --ranks 64 --ranks-per-node 8 --bandwidth 0.1 --latency 20000 --step-ms 60000 --parameters 7000
verify "none has an exponent above 0" bash -c '! grep -q "[0-9]e+" .stdout'
check "the same network with more ranks" 0 '^8 ranks on 4 hosts' "$topo" plan --measured net.json --ranks 8 --ranks-per-node 2 --step-ms 20
cat >tiny.json <<'JSON'
{"model": {"type": "mlp", "hidden": [64]}, "data": {"type": "synthetic", "limit": 256, "test_limit": 32}, "batch_size": 16, "steps": 4,
 "sync": {"topology": {"type": "auto"}, "bucket_mb": "auto"}, "checkpoint": {"every_steps": 2}, "threads": 1}
JSON
check "a plan for a config" 0 '^recommended: ' "$topo" plan --measured net.json --model tiny.json
# Matrices of 64×3072 and 10×64: 5 iterations of 2·(2·s²·l + s³) each, s the shorter side.
check "muon's products take time" 0 "^an update's products of whole matrices: 254.4 MFLOP, 5.088 ms at 50 GFLOP/s$" "$topo" plan --ranks 4 --model tiny.json --set optimizer.type=muon --step-ms 20 --update-gflops 50
check "at a rate that is assumed" 0 "FLOP, 2.544 ms at 100 GFLOP/s \(assumed; --update-gflops says it\)$" "$topo" plan --ranks 4 --model tiny.json --set optimizer.type=muon --step-ms 20
check "or measured" 0 "products of whole matrices: 254.4 MFLOP, .* [MGT]FLOP/s$" "$topo" plan --ranks 4 --model tiny.json --set optimizer.type=muon
check "JSON has them apart" 0 '^0.2544 5.088 25' bash -c '"$topo" plan --ranks 4 --model tiny.json --set optimizer.type=muon --step-ms 20 --update-gflops 50 --json |
  python3 -c "import json, sys; p = json.load(sys.stdin); print(round(p[\"update_products\"][\"gflop\"], 4), round(p[\"update_products\"][\"ms\"], 3), p[\"compute_ms\"])"'
check "a step has it" 0 '^a step without communication: 25\.' "$topo" plan --ranks 4 --model tiny.json --set optimizer.type=muon --step-ms 20 --update-gflops 50
check "adamw has none" 0 '^a step without communication: 20\.' "$topo" plan --ranks 4 --model tiny.json --step-ms 20
check "a config that is wrong" 2 'batch_size' "$topo" plan --ranks 2 --model tiny.json --set batch_size=-1

check "auto chooses and says so" 0 '^auto: .*predicted' ranks 2 "$train" tiny.json --output run
check "the choice is in the summary" 0 '"predicted_step_ms"' cat run/summary.json
verify "the resolved config holds it" bash -c 'python3 -c "import json; s = json.load(open(\"run/config.json\"))[\"sync\"]; assert s.get(\"topology\", {}).get(\"type\") != \"auto\" and s[\"bucket_mb\"] > 0"'
check "an algorithm auto is the same choice" 0 '^auto: .*predicted' ranks 2 "$train" tiny.json --set sync.topology={} --set sync.algorithm=auto --output both
verify "and the resolved config has what it came to" python3 -c '
import json
sync = json.load(open("both/config.json"))["sync"]
assert sync["algorithm"]["type"] in ("gossip", "allreduce") and ("topology" in sync) == (sync["algorithm"]["type"] == "gossip"), sync'
check "which is kept when it goes on" 0 'continuing after step 4' ranks 2 "$train" tiny.json --set sync.topology={} --set sync.algorithm=auto --set steps=6 --output both --resume latest
check "one alone takes it" 0 '^done: ' "$train" tiny.json --set sync.algorithm=auto --output auto_alone
check "one rank needs no choice" 0 '^done: ' "$train" tiny.json --output alone
rm run/checkpoints/step-4/DONE
check "a resumed run keeps the choice" 0 'continuing after step 2' ranks 2 "$train" tiny.json --output run --resume latest
check "another topology is refused" 2 'sync' ranks 2 "$train" tiny.json --output run --resume latest --set sync.bucket_mb=3
finish
