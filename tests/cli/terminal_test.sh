#!/usr/bin/env bash
# On a terminal, mpirun's too, lines break at words to its width, and progress has what matters; in
# a file or a pipe a line stays one line.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
# on_terminal COLUMNS COMMAND...: what the command writes to stderr, a terminal so wide; stdout is
# elsewhere, or there too with "both" before.
cat >on_terminal.py <<'END'
import fcntl, os, pty, struct, subprocess, sys, termios
both = sys.argv[1] == "both" and sys.argv.pop(1)
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stderr=slave, stdout=slave if both else None)
os.close(slave)
text = b""
try:
    while data := os.read(master, 65536):
        text += data
except OSError:  # the other end is closed
    pass
sys.stderr.write(text.decode().replace("\r\n", "\n"))
sys.exit(process.wait())
END
on_terminal() { python3 "$work/on_terminal.py" "$@"; }
export -f on_terminal
export work

# broken NAME COLUMNS STATUS COMMAND...: the terminal gets the pipe's one line, in lines that are
# not too wide and end at words.
broken() {
  local name=$1 columns=$2 expected=$3 status=0
  shift 3
  checks=$((checks + 1))
  "$@" 2>piped >.stdout
  on_terminal "$columns" "$@" 2>shown >.stdout || status=$?
  cat piped shown >.out
  if [ "$status" != "$expected" ]; then
    failed "$name: exit status $status instead of $expected"
  elif [ "$(wc -l <piped)" != 1 ]; then
    failed "$name: in a pipe it is not one line"
  elif [ "$(wc -L <shown)" -gt "$columns" ] || [ "$(wc -l <shown)" -lt 2 ]; then
    failed "$name: on the terminal it has $(wc -l <shown) lines of up to $(wc -L <shown) columns"
  elif [ "$(sed -E ':a;N;$!ba;s/\n +/ /g' shown)" != "$(cat piped)" ]; then
    failed "$name: the terminal shows other words"
  else
    echo "ok      $name"
  fi
}
long="sync={\"topology\": {\"type\": \"static-rign\"}}"
broken "an error of starling-train, 80 columns" 80 2 "$train" small.json --dry-run --set "$long"
broken "the same, 45 columns" 45 2 "$train" small.json --dry-run --set "$long"
broken "an error of starling-topo" 50 2 "$build/bin/starling-topo" show no-such-topology --ranks 4
broken "an error of starling-doctor" 40 2 "$build/bin/starling-doctor" blame no/such/folder/of/a/run
warns() { "$train" small.json --output "$(mktemp -u -p .)" >/dev/full; }
export -f warns
broken "a warning" 50 0 bash -c warns
check "a line that is short enough" 2 "^\[resume\].*|^\[arguments\].*" on_terminal 500 "$train" small.json --resume latest
verify "stays one line" test "$(grep -c . .stderr)" = 1
check "in the place of a progress line" 2 "^"$'\r\x1b'"\[K\[config\] .*static-rign" on_terminal both 500 "$train" small.json --dry-run --set "$long"
check "a terminal that does not say how wide it is" 2 "^\[config\].*static-rign" on_terminal 0 "$train" small.json --dry-run --set "$long"
verify "gets whole lines" test "$(grep -c . .stderr)" = 1

# fits NAME COLUMNS PATTERN COMMAND...: all that the command shows is within the columns, of which
# some line is like that.
fits() {
  local name=$1 columns=$2 pattern=$3
  shift 3
  check "$name" 0 "" on_terminal both "$columns" "$@"
  tr '\r' '\n' <.stderr | sed 's/\x1b\[K//g' >screen
  verify "is within $columns columns" bash -c '[ "$(wc -L <"$1")" -le "$2" ]' _ screen "$columns"
  verify "and has '$pattern'" grep -qE "$pattern" screen
}
run=("$train" small.json --set steps=300 --set log_every=50)
fits "a training" 80 '^\[#+\.*\] step [0-9]+/300 [0-9]+%  epoch .*  loss .*  lr .* img/s' "${run[@]}" --output wide
fits "a narrow one" 50 '^step [0-9]+/300 [0-9]+%  loss [0-9.]+  [0-9]+ img/s' "${run[@]}" --output narrow
fits "a narrower one" 34 '^step [0-9]+/300 [0-9]+%  loss [0-9.]+' "${run[@]}" --output narrower
fits "on two ranks" 50 '^step [0-9]+/300 [0-9]+%  loss [0-9.]+  [0-9]+ img/s' mpirun --oversubscribe -n 2 "${run[@]}" --output two
fits "a list" 60 '^                       ?[a-z]' "$train" --list topologies
fits "the help" 70 '^ {30}' "$train" --help
check "an error of a rank" 2 "^  'batch_size'.; known: plugins" on_terminal 60 mpirun --oversubscribe -n 2 "$train" small.json --dry-run --set bacht_size=3
verify "is within the terminal" bash -c '[ "$(sed "s/\x1b\[K//g; s/\r//g" .stderr | wc -L)" -le 60 ]'
TERM=dumb check "a terminal that cannot go back" 0 "^step 300/300 100%" on_terminal both 80 "${run[@]}" --output dumb
verify "gets lines" bash -c '! grep -q "$(printf "\x1b")" .stderr'
check "a list with a line on each, in a pipe" 0 "^ring +pairs of neighbours in turn" "$train" --list topologies --long
check "without" 0 "^ring$" "$train" --list topologies
finish
