#!/usr/bin/env bash
# A manual page (groff's man macros) of a program, made of its own --help and that of its
# subcommands: scripts/man_page.sh PROGRAM >NAME.1
set -euo pipefail
program=$1
name=$(basename "$program")
version=$("$(dirname "$program")/starling-train" --version | sed -nE 's/^starling ([^ ]+).*/\1/p')
# Text as roff reads it: no escapes, no line that begins with a request.
roff() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"; }
help() { "$program" "$@" --help; }
whole=$(help)
subcommands=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$whole")

printf '.TH %s 1 "" "Starling %s" "User Commands"\n.SH NAME\n' "${name^^}" "$version"
first=$(head -n 1 <<<"$whole")
first=${first#"$name": }
printf '%s \\- %s\n' "$(roff <<<"$name")" "$(roff <<<"${first%.}")"
# section HELP: usage, then each heading with its options
section() {
  local line
  printf '.SH %s\n.nf\n' "${2:-SYNOPSIS}"
  tail -n +2 <<<"$1" | while IFS= read -r line; do
    case $line in
      Usage:*) printf '%s %s\n' "$name" "$(sed -E 's/^Usage: [^ ]+//' <<<"$line" | roff)" ;;
      *) roff <<<"$line" ;;
    esac
  done
  printf '.fi\n'
}
section "$whole"
for subcommand in $subcommands; do section "$(help "$subcommand")" "${subcommand^^}"; done
printf '.SH SEE ALSO\n'
for other in train predict prepare topo bench doctor report; do
  [ "starling-$other" = "$name" ] || printf '.BR starling\\-%s (1)\n' "$other"
done
