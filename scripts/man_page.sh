#!/usr/bin/env bash
# A manual page (groff's man macros) of a program, made of its own --help and that of its
# subcommands: scripts/man_page.sh PROGRAM >NAME.1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=$1
name=$(basename "$program")
version=$("$(dirname "$program")/starling-train" --version | sed -nE 's/^starling ([^ ]+).*/\1/p')
# Text as roff reads it: no escapes, no line that begins with a request.
roff() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"; }
help() { "$program" "$@" --help; }
whole=$(help)
subcommands=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$whole")
first() { head -n 1 <<<"$1" | sed -e "s/^$name: //" -e 's/\.$//' | roff; }
usage() { sed -nE "s/^Usage: [^ ]*($name.*)/\1/p" <<<"$1" | roff; }
# The entries below these headings of a help text, a paragraph each. What an entry is stands from the
# 31st column on, of its own line or, where its left side is long, of the next one.
entries() { # HELP HEADING...
  local heading
  for heading in "${@:2}"; do
    sed -n "/^$heading:/,/^$/{/^  /p}" <<<"$1" | awk '
      function safe(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.\x27]/, "\\\\\\&&", text); return text }
      function flush() { if (left == "") return; sub(/^ +/, "", left); sub(/ +$/, "", left); print ".TP\n\\fB" safe(left) "\\fR\n" safe(what); left = "" }
      substr($0, 1, 30) ~ /^ +$/ { left = held; what = substr($0, 31); flush(); held = ""; next }
      { if (held != "") { left = substr(held, 1, 30); what = substr(held, 31); flush() } held = $0 }
      END { if (held != "") { left = substr(held, 1, 30); what = substr(held, 31); flush() } }'
  done
}

printf '.TH %s 1 "" "Starling %s" "User Commands"\n.SH NAME\n' "${name^^}" "$version"
printf '%s \\- %s\n.SH SYNOPSIS\n' "$(roff <<<"$name")" "$(first "$whole")"
printf '.B %s\n' "$(usage "$whole")"
for subcommand in $subcommands; do printf '.br\n.B %s\n' "$(usage "$(help "$subcommand")")"; done
if [ -n "$subcommands" ]; then printf '.SH COMMANDS\n%s\n' "$(entries "$whole" Subcommands)"; fi
printf '.SH OPTIONS\n%s\n' "$(entries "$whole" Positionals Options)"
for subcommand in $subcommands; do
  text=$(help "$subcommand")
  printf '.SS %s %s\n%s.\n%s\n' "$(roff <<<"$name")" "$subcommand" "$(first "$text")" "$(entries "$text" Positionals Options)"
done
footer=$(awk '/^[A-Z][A-Za-z]+:($| )/ { inside = 1 } /^$/ { inside = 0 } NR > 1 && !inside && NF' <<<"$whole" | roff)
if [ -n "$footer" ]; then printf '.SH NOTES\n%s\n' "$footer"; fi
printf '.SH SEE ALSO\n'
for other in train predict prepare topo bench doctor report; do
  [ "starling-$other" = "$name" ] || printf '.BR starling\\-%s (1)\n' "$other"
done
