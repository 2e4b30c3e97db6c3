#!/usr/bin/env bash
# starling-report: the HTML file, in a browser where there is one, its text, the live page, and what
# it refuses.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export report=$build/bin/starling-report

small_config
train_small() { # FOLDER ARGUMENT...
  ranks 2 "$train" small.json --set evaluate.every_steps=4 --output "$@" >/dev/null
}
verify "two runs" train_small slow --set optimizer.lr=0.01 --set trace=slow.trace
verify "another" train_small 'fast<b>' --set sync.algorithm=allreduce

check "the file's name" 0 '^report.html$' "$report" slow 'fast<b>'
holds() { grep -qF -- "$1" report.html; }
for text in '<svg class="chart"' '<svg class="tiles"' '<svg class="timeline"' 'class="topology"' '<code>optimizer.lr</code>' \
  '<code>sync.algorithm.type</code>' 'bytes sent by all ranks' 'rank 1' 'prefers-color-scheme:dark' 'fast&lt;b&gt;'; do
  verify "it holds $text" holds "$text"
done
verify "a name with markup is text" bash -c '! grep -q "fast<b>" report.html'
verify "nothing is fetched" bash -c '! grep -qE "(src|href)=\"?(https?:)?//|@import|url\(" report.html'
# A metric's numbers are among the table's behind its picture.
verify "the last loss" bash -c 'loss=$(tail -n 3 slow/metrics.jsonl | grep -o "\"loss\":[0-9.]*" | tail -n 1 | cut -d: -f2)
  grep -qF "<td>slow</td><td>12</td><td>$(printf %.4g "$loss")</td>" report.html'
verify "bytes: 2 ranks, 12 steps, 4 bytes a parameter and its padding" bash -c 'python3 - <<END
import json
run = [json.loads(line) for line in open("slow/metrics.jsonl")]
sent = [line["bytes_sent"] for line in run if "bytes_sent" in line][-1]
parameters = json.load(open("slow/summary.json"))["parameters"]
assert 1.0 <= sent / (2 * 12 * 4 * parameters) < 1.01, sent
assert all(len(line["rank_wait_ms"]) == 2 for line in run if "loss" in line)
END'
verify "the confusion matrix counts every test sample" bash -c '
  [ "$(tail -n +2 slow/confusion.csv | cut -d, -f2- | tr , "\n" | awk "{ n += \$1 } END { print n }")" = 256 ]'

if browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome); then
  export browser
  shows() { # WHAT: the page as the browser has it after its scripts, or what it complains of
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/.browser" --enable-logging=stderr \
      --dump-dom "$1" 2>browser.log >page.html
    ! grep -E 'CONSOLE' browser.log
  }
  verify "no complaint of the browser" shows "file://$PWD/report.html"
  verify "all of the page" grep -q 'id="timeline"' page.html
fi

check "text" 0 '^loss \(' "$report" --text slow 'fast<b>'
verify "80 columns" bash -c '[ "$("$report" --text slow "fast<b>" | LC_ALL=C.UTF-8 wc -L)" -le 80 ]'
check "text names keys that differ" 0 '^  optimizer.lr$' "$report" --text slow 'fast<b>'

cp -r slow begun
rm begun/summary.json begun/confusion.csv
printf '%s' "$(head -c 400 slow/metrics.jsonl)" >begun/metrics.jsonl
check "half a line" 0 '^begun  stopped at step' "$report" --text begun
: >begun/metrics.jsonl
check "no line yet" 0 '^begun  no line yet' "$report" --text begun
check "its page" 0 . "$report" begun --out begun.html
mkdir -p other/slow && cp -r slow/. other/slow
check "runs of one name go by their folders" 0 '^other/slow ' "$report" --text slow other/slow

mkdir empty
check "no run" 2 'empty: has no config.json, so it is no run' "$report" empty
check "no folder" 2 'nowhere: there is no such folder' "$report" nowhere
check "a file" 2 'small.json: is no folder' "$report" small.json
check "a file that cannot be written" 5 '/nowhere/report.html' "$report" slow --out /nowhere/report.html
echo '{' >begun/config.json
check "a damaged config" 2 'begun/config.json' "$report" begun
echo 'true class,a' >other/slow/confusion.csv && echo 'a,x' >>other/slow/confusion.csv
check "a damaged table is said on the page" 0 . "$report" other/slow --out other.html
verify "by row and column" grep -q 'confusion.csv: row 2' other.html

# The live page: the token's address alone, what a run gains, a run that goes.
"$report" --watch slow 'fast<b>' >address &
live=$!
for _ in $(seq 100); do [ -s address ] && break || sleep 0.1; done
address=$(cat address)
export address
body() { curl -sf -m 10 "${address}body"; }
export -f body
verify "an address with a token on this machine" bash -c '[[ $address =~ ^http://127.0.0.1:[0-9]+/[0-9a-f]{32}/$ ]]'
verify "the page" bash -c 'curl -sf -m 10 "$address" | grep -q "<script>"'
for path in / /body /etc/passwd /../slow/config.json; do
  verify "nothing at $path" bash -c '[ "$(curl -s -m 10 --path-as-is -o /dev/null -w "%{http_code}" "http://${address:7:15}$1" || echo none)" != 200 ]' _ "$path"
done
check "the port is in use" 2 'is in use' "$report" --watch slow --port "$(cut -d: -f3 address | cut -d/ -f1)"
verify "unchanged" bash -c 'tag=$(curl -sf -m 10 -D - -o /dev/null "${address}body" | grep -i ^etag | cut -d" " -f2 | tr -d "\r")
  [ "$(curl -s -m 10 -H "If-None-Match: $tag" -o /dev/null -w "%{http_code}" "${address}body")" = 304 ]'
echo '{"step":13,"epoch":1,"loss":0.5,"lr":0.02,"step_ms":1}' >>slow/metrics.jsonl
verify "a new line" bash -c 'body | grep -q "<td>slow</td><td>13</td>"'
rm -r 'fast<b>'
verify "a run that is removed" bash -c 'body | grep -q "is removed"'
kill -TERM "$live"
wait "$live"
verify "it ends when told to" [ $? = 0 ]
finish
