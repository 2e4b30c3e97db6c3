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
verify "only what this page's own style is may be inline" python3 - report.html <<'PYTHON'
import base64, hashlib, re, sys
page = open(sys.argv[1]).read()
policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)[1]
digest = base64.b64encode(hashlib.sha256(re.search("<style>(.*?)</style>", page, re.S)[1].encode()).digest()).decode()
assert f"style-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy and "unsafe" not in policy, policy
assert "<script" not in page and " style=" not in page
PYTHON
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
head -c $(($(head -n 1 slow/metrics.jsonl | wc -c) + 60)) slow/metrics.jsonl >begun/metrics.jsonl
check "half a line" 0 '^begun  stopped at step' "$report" --text begun
: >begun/metrics.jsonl
check "no line yet" 0 '^begun  no line yet' "$report" --text begun
check "its page" 0 . "$report" begun --out begun.html
mkdir -p other/slow && cp -r slow/. other/slow
check "runs of one name go by their folders" 0 '^other/slow ' "$report" --text slow other/slow

# What files bring is text, in every place: fields, keys, classes, algorithms, versions, spans, samples.
cat >poison.py <<'PYTHON'
import json, os, re, subprocess, sys
report, out = sys.argv[1:]
bad = "x\"'><img src=x onerror=alert(1)>&lt;\x1b]0;t\x07\u009b31m"
os.makedirs("poison\"><b>", exist_ok=True)
os.makedirs("other", exist_ok=True)
lines = [{"step": 1, "epoch": 1, "loss": 1.0, bad: 0.5, "test_" + bad: 0.5, "test_accuracy" + bad: 0.5, "step_ms": 2, "wait_ms": 1, "rank_wait_ms": [1, 2], "sample": bad + "\nline", "grad_norm": 2.0, "grad_norm_max": 3.0}]
trace = os.path.abspath("t.json")
for folder in ("poison\"><b>", "other"):
    first = json.dumps(lines[0])
    json.dump({bad: folder, "a": {bad: [bad, folder]}, "trace": trace, "sync": {"algorithm": {"type": bad}, "topology": {"type": bad + folder}}}, open(folder + "/config.json", "w"))
    json.dump({"ranks": 2, "version": bad, "commit": bad}, open(folder + "/summary.json", "w"))
    open(folder + "/metrics.jsonl", "w").write(first + "\n")
    q = bad.replace('"', '""')
    open(folder + "/confusion.csv", "w").write(f'true class,"{q}",b\n"{q}",1,2\nb,3,4\n')
    json.dump({"otherData": {"run": bad, "first_line": first}, "traceEvents": [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": bad}}, {"ph": "X", "name": bad, "pid": 0, "tid": 0, "ts": 0, "dur": 100}]}, open(trace, "w"))
subprocess.run([report, "poison\"><b>", "other", "--out", out], check=True, stdout=subprocess.DEVNULL)
page = open(out).read()
# The page's own elements and attributes alone, and each attribute as it was begun
from html.parser import HTMLParser
class Look(HTMLParser):
    def handle_starttag(self, tag, attributes):
        assert tag in {"html", "head", "meta", "title", "link", "style", "body", "header", "h1", "h2", "h3", "p", "main", "div", "table", "thead", "tbody", "tr", "th", "td", "i", "span", "code", "figure", "figcaption", "input", "label", "details", "summary", "svg", "g", "path", "text", "rect", "circle", "wbr", "line", "defs", "marker", "polyline"}, tag
        for name, value in attributes: assert not name.startswith("on") and name != "style" and name != "src", (tag, name, value)
Look().feed(page)
for kind in ("Gradient norm before clipping: mean", "Gradient norm before clipping: largest", "wrote in training", "test_x&quot;", "Two steps"): assert kind in page, kind
text = subprocess.run([report, "poison\"><b>", "other", "--text"], check=True, capture_output=True, text=True).stdout
assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), repr(text)
PYTHON
verify "what files bring is text on the page and in the terminal" python3 poison.py "$report" poison.html
if [ -n "${browser:-}" ]; then
  verify "the browser has no complaint of it" shows "file://$PWD/poison.html"
  verify "nor an element of theirs" bash -c '! grep -q "<img" page.html && ! grep -q "alert(1)>\"" page.html'
fi

check "another's file stays" 2 "--out small.json: the file is there already and holds no report" "$report" slow --out small.json
verify "as it was" grep -q '"model"' small.json
check "a report takes the place of one" 0 '^report.html$' "$report" slow 'fast<b>'

# A timeline is of the run that it names, wherever both lie.
verify "a run traced into the other's file" train_small again --set trace=slow.trace
mkdir reader && cp slow.trace reader/trace.json
check "from elsewhere" 0 . bash -c 'cd reader && "$report" ../slow ../again --out two.html'
verify "one timeline, that of the second" bash -c '[ "$(grep -c "<svg class=\"timeline" reader/two.html)" = 1 ]'
verify "and a word on the first" grep -q 'slow.trace: is the timeline of another run, .*/again<' reader/two.html
mv again moved
check "a run that was moved" 0 . "$report" moved --out moved.html
verify "has its own" grep -q '<svg class="timeline"' moved.html
echo '{"traceEvents":[]}' >slow.trace
check "a timeline that names no run" 0 . "$report" moved --out moved.html
verify "is none of its" bash -c '! grep -q "<svg class=\"timeline" moved.html && grep -q "does not say which run" moved.html'

# A run that went on after its end has not ended, unless it did.
verify "resumed to the same end" train_small moved --resume latest
check "has ended" 0 '^moved  has ended' "$report" --text moved
"$train" small.json --output alone --set steps=4 >/dev/null
"$train" small.json --output alone --resume latest --set steps=100000000 --set checkpoint.every_steps=50 >/dev/null 2>&1 &
process=$!
for _ in $(seq 200); do [ -e alone/checkpoints/step-100/DONE ] && break || sleep 0.1; done
check "under way" 0 '^alone  is under way' "$report" --text alone
kill -9 "$process"
wait "$process" 2>/dev/null
check "resumed and killed" 0 '^alone  stopped at step' "$report" --text alone
echo '{"steps": 4}' >alone/summary.json
check "with a summary of before" 0 '^alone  stopped at step' "$report" --text alone

mkdir one two
echo '{"a": 1, "b": 2, "mine": 3}' >one/config.json
echo '{"a": 1, "b": 4, "theirs": {"c": 3}}' >two/config.json
check "keys that both have" 0 '^  b$' "$report" --text one two
verify "and no others" bash -c '! grep -qE "^  (a|mine|theirs.*)$" "$work/.stdout"'

mkdir empty
mkdir model && echo '{"model_type": "gpt2"}' >model/config.json
check "a model's folder" 2 "model: its config.json is a model's, not a run's" "$report" model
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
verify "the page" bash -c 'curl -sf -m 10 -D headers -o live.html "$address" && grep -q "<script>" live.html'
verify "its style and script are those that may run" python3 - <<'PYTHON'
import base64, hashlib, re
page = open("live.html").read()
policy = re.search("(?i)^content-security-policy: (.*)$", open("headers").read(), re.M)[1]
for tag, rule in (("style", "style-src"), ("script", "script-src")):
    text = re.search(f"<{tag}>(.*?)</{tag}>", page, re.S)[1]
    assert f"{rule} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy, policy
assert "unsafe" not in policy and "innerHTML" not in page and "frame-ancestors 'none'" in policy
PYTHON
# Who says nothing, or half a thing, keeps nobody waiting.
python3 - "$(cut -d: -f3 address | cut -d/ -f1)" <<'PYTHON' &
import socket, sys, time
held = []
for i in range(128):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    if i % 2: one.sendall(b"GET / HTTP/1.1\r\nHo")
    held.append(one)
open("held", "w").write("x")
time.sleep(60)
PYTHON
silent=$!
for _ in $(seq 100); do [ -e held ] && break || sleep 0.1; done
verify "a visitor beside 128 silent ones" curl -sf -m 5 -o /dev/null "${address}body"
kill "$silent"
for path in / /body /etc/passwd /../slow/config.json; do
  verify "nothing at $path" bash -c '[ "$(curl -s -m 10 --path-as-is -o /dev/null -w "%{http_code}" "http://${address:7:15}$1" || echo none)" != 200 ]' _ "$path"
done
check "the port is in use" 2 'is in use' "$report" --watch slow --port "$(cut -d: -f3 address | cut -d/ -f1)"
verify "unchanged" bash -c 'tag=$(curl -sf -m 10 -D - -o /dev/null "${address}body" | grep -i ^etag | cut -d" " -f2 | tr -d "\r")
  [ "$(curl -s -m 10 -H "If-None-Match: $tag" -o /dev/null -w "%{http_code}" "${address}body")" = 304 ]'
echo '{"step":13,"epoch":1,"loss":0.5,"lr":0.02,"step_ms":1}' >>slow/metrics.jsonl
verify "a new line" bash -c 'body | grep -q "<td>slow</td><td>13</td>"'
# The same file, begun anew and longer by the next look: nothing of the old run stays.
python3 - <<'PYTHON'
import json
keep = open("slow/metrics.jsonl").read()
with open("slow/metrics.jsonl", "r+") as file:
    file.truncate(0)
    for step in range(1, 3 * keep.count("\n")): file.write(json.dumps({"step": step, "loss": 7.5, "lr": 0.02, "step_ms": 1}) + "\n")
PYTHON
verify "begun anew in the same file" bash -c 'body >anew.html'
verify "its points are the new ones" python3 - <<'PYTHON'
import re
losses = set(re.findall(r"<td>slow</td><td>\d+</td><td>([\d.]+)</td>", re.search('<figure id="loss".*?</figure>', open("anew.html").read(), re.S)[0]))
assert losses == {"7.5"}, losses
PYTHON
rm slow/metrics.jsonl
verify "and none where there is no line yet" bash -c '! body | grep -q "<td>7.5</td>"'
rm -r 'fast<b>'
verify "a run that is removed" bash -c 'body | grep -q "is removed"'
kill -TERM "$live"
wait "$live"
verify "it ends when told to" [ $? = 0 ]
finish
