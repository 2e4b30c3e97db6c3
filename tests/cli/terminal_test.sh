#!/usr/bin/env bash
# On a terminal, mpirun's too, progress is one line that fits, and an error takes its place.
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

long="sync={\"topology\": {\"type\": \"static-rign\"}}"
check "in the place of a progress line" 2 "^"$'\r\x1b'"\[K\[config\] .*static-rign" on_terminal both 500 "$train" small.json --dry-run --set "$long"
# fits NAME COLUMNS PATTERN COMMAND...: the command's progress is within the columns, of which some
# line is like that.
fits() {
  local name=$1 columns=$2 pattern=$3
  shift 3
  check "$name" 0 "" on_terminal both "$columns" "$@"
  tr '\r' '\n' <.stderr | sed 's/\x1b\[K//g' | grep -E '(^|\] )step [0-9]+/' >screen
  verify "is within $columns columns" bash -c '[ "$(wc -L <"$1")" -le "$2" ]' _ screen "$columns"
  verify "and has '$pattern'" grep -qE "$pattern" screen
}
run=("$train" small.json --set steps=300 --set log_every=50)
fits "a training" 80 '^\[#+\.*\] step [0-9]+/300 [0-9]+%  epoch .*  loss .*  lr .* img/s' "${run[@]}" --output wide
fits "a narrow one" 50 '^step [0-9]+/300 [0-9]+%  loss [0-9.]+  [0-9]+ img/s' "${run[@]}" --output narrow
fits "a narrower one" 34 '^step [0-9]+/300 [0-9]+%  loss [0-9.]+' "${run[@]}" --output narrower
fits "on two ranks" 50 '^step [0-9]+/300 [0-9]+%  loss [0-9.]+  [0-9]+ img/s' mpirun --oversubscribe -n 2 "${run[@]}" --output two
check "an error of a rank" 2 "^"$'\r\x1b'"\[K\[config\] .*batch_size..; known: plugins" on_terminal both 60 mpirun --oversubscribe -n 2 "$train" small.json --dry-run --set bacht_size=3
TERM=dumb check "a terminal that cannot go back" 0 "^step 300/300 100%" on_terminal both 80 "${run[@]}" --output dumb
verify "gets lines" bash -c '! grep -q "$(printf "\x1b")" .stderr'
check "a list with a line on each, in a pipe" 0 "^ring +pairs of neighbours in turn" "$train" --list topologies --long
check "without" 0 "^ring$" "$train" --list topologies
finish
