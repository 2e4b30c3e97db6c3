#!/usr/bin/env bash
# ctest: alone
# scripts/comm_bench: its arguments, the commands that it would run, and the rows that take seconds.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export bench=$root/scripts/comm_bench/comm_bench.py NETLAB_NAME=cb$$
trap '"$root/scripts/netlab/netlab" down >/dev/null 2>&1; rm -rf "$work"' EXIT

check "an unknown row" 2 "no-such-row is unknown; known: exchange" "$bench" --only no-such-row
check "a rate that is none" 2 "whole numbers of Mbit/s" "$bench" --rates fast
check "a dry run of everything" 0 "netlab run 2 .*starling-train" "$bench" --dry-run
verify "shows every program" bash -c 'for word in "starling-bench exchange" "netlab up 4 100" device_time "peers/step.py train" "--ranks 4096"; do
  grep -q -e "$word" "$1" || { echo "no $word"; exit 1; }; done' _ "$work/.stdout"
verify "and leaves nothing" bash -c '! ls -d runs /etc/netns/"$NETLAB_NAME"-* 2>/dev/null'
check "a dry run of a race" 0 "evaluate.every_steps=100 .*sync=.*local_sgd" "$bench" race --dry-run
mkdir race
printf '%s\n' '{"step": 10, "step_ms": 100}' '{"step": 20, "step_ms": 200}' '{"step": 20, "test_accuracy": 0.5}' '{"step": 40, "step_ms": 50, "test_accuracy": 0.9}' >race/metrics.jsonl
verify "a race's seconds, bytes and what it took" python3 -c '
import json, sys
sys.path[:0] = [sys.argv[1] + "/scripts/comm_bench", sys.argv[1] + "/scripts"]
from race import first_at, read_points
points = read_points([json.loads(line) for line in open("race/metrics.jsonl")], 8e6)
assert points["megabytes"] == [4.0, 8.0] and points["accuracy"] == [50.0, 90.0], points
assert all(abs(a - b) < 1e-9 for a, b in zip(points["seconds"], [3.0, 4.0])), points
assert abs(first_at(points, "seconds", 70) - 3.5) < 1e-9 and first_at(points, "seconds", 91) is None
losses = read_points([{"step": 1, "seconds": 2.0, "test_loss": 5.0}, {"step": 2, "seconds": 4.0, "test_loss": 3.0}], 2e6)
assert losses["loss"] == [5.0, 3.0] and first_at(losses, "seconds", 4) == 3.0 and first_at(losses, "megabytes", 5) == 1.0' "$root"

verify "steps to a loss" python3 -c '
import math, sys
sys.path.insert(0, sys.argv[1] + "/scripts")
from compare_algorithms import mean_curve, steps_ratio
curve = lambda every: [(every * i, 1 / i) for i in range(1, 30)]
assert abs(steps_ratio(curve(25), curve(50)) - 2) < 1e-9 and abs(steps_ratio(curve(25), curve(25)) - 1) < 1e-9
assert math.isnan(steps_ratio(curve(25), [])) and mean_curve([{5: 3.0, 10: 2.0, 20: 4.0}, {5: 1.0, 10: 1.0, 20: 1.0, 30: 0.0}]) == [(5, 2.0), (10, 1.5), (20, 1.5)]
' "$root"
check "algorithms are compared, and one that diverges" 0 "steps to a loss, for one of gossip \| 0.02 \| 1e30 \|" "$root/scripts/compare_algorithms.py" \
  "$root/configs/synthetic_mlp.json" --ranks 2 --rates 0.02,1e30 --set steps=60 --set evaluate.every_steps=2 --steps-to-loss --algorithms gossip allreduce
verify "a table of each" bash -c 'grep -Eq "^\| .gossip. \| [0-9.]+ \| [0-9.]+ \| 0.02 \|" .stdout && grep -Eq "^\| .allreduce. \| [0-9.]+ \| nan \|" .stdout'

check "exchange and plan" 0 "^- 4,096 ranks, 8 a host: [0-9.]+ s" "$bench" --quick --only exchange,plan4096 --out out
verify "have their rows in JSON" python3 -c '
import json
rows = {row["row"]: row for row in json.load(open("out/comm.json"))["rows"]}
assert [list(line["results"]) for line in rows["exchange"]["lines"]] == [["direct exchange + update", "MPI_Sendrecv + update"]] * 2, rows
assert all(line["memory_mb"] < 400 for line in rows["plan4096"]["lines"]), rows'
check "the layer that takes time builds" 0 "libdevice_time" bash -c '
  "${STARLING_CMAKE:-cmake}" -S "$1/scripts/comm_bench/device_time" -B time -Dstarling_DIR="$2" -DSTARLING_CUDA=OFF && "${STARLING_CMAKE:-cmake}" --build time' _ "$root" "$build"
cat >time.json <<'JSON'
{"plugins": ["time/libdevice_time.so"], "model": {"type": "sequential", "num_classes": 10, "layers": [{"type": "flatten"},
 {"type": "linear", "out_features": 10}, {"type": "device_time", "ms": 20}]}, "data": {"type": "synthetic", "limit": 32, "test_limit": 8},
 "batch_size": 8, "steps": 4, "log_every": 4, "threads": 1}
JSON
check "and training waits in it" 0 "done: " "$train" time.json --output time_run
verify "forward, and twice as long backward" python3 -c '
import json
line = json.loads(open("time_run/metrics.jsonl").readline())
assert line["step_ms"] >= 60, line'
echo '{"ranks": 2, "ranks_per_node": 1, "inside": {"latency_us": 1, "bandwidth_gbs": 5}, "between": {"latency_us": 50, "bandwidth_gbs": 0.0125},
  "hosts_bandwidth_gbs": [], "memory_bandwidth_gbs": 20, "message_cpu_ns_per_byte": 0, "direct": true, "spare_cores": true, "both_directions": 1}' >cell.json
verify "cells of a plan: what is recommended may take 1.1 times as long as the fastest" bash -c '
  python3 -c "
import json
network = json.load(open(\"cell.json\"))
for delay, ms in ((0, 105), (1, 120)):
    for what, value in ((\"network\", network), (\"alone\", 5.0), (\"alternating-exp-ring 25\", ms), (\"base-2 25\", 100)):
        print(json.dumps({\"cell\": [100, delay, 2, 1], \"what\": what, \"value\": value}))" >cells.jsonl
  STARLING_BUILD=$2 "$1/scripts/netlab/plan-cells" report cells.jsonl | tee cells.out
  grep -q "recommended alternating-exp-ring 25: 1.05 x base-2 25$" cells.out && grep -q "1.20 x base-2 25  <<<" cells.out && grep -q "^right: 1 of 2;" cells.out' _ "$root" "$build"
check "a program that is missing is said" 0 "skipped: .*no-build/bin/starling-bench is missing" env STARLING_BUILD="$work/no-build" "$bench" --only exchange --out none
finish
