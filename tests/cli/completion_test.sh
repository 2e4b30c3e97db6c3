#!/usr/bin/env bash
# What a shell completes, and the manual pages: both made of the programs' own help.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# completes "WORD WORD … LAST" WANTED…: bash offers each WANTED for the last word ("" after a blank;
# "=" is a word of its own, as bash takes words apart).
verify "bash" bash -c '"$0"/scripts/completion.sh bash "$1"/bin/starling-{train,topo,doctor} >completion' "$root" "$build"
# shellcheck disable=SC1091
source ./completion
completes() {
  local wanted name
  mapfile -t COMP_WORDS < <(sed 's/ /\n/g; s/=/\n=\n/g' <<<"$1")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  name=${COMP_WORDS[0]}
  "_${name//-/_}" 2>/dev/null
  for wanted in "${@:2}"; do
    case $wanted in
      !*) ! grep -qxF -e "${wanted#!}" <<<"$(printf '%s\n' "${COMPREPLY[@]}")" || return 1 ;;
      *) grep -qxF -e "$wanted" <<<"$(printf '%s\n' "${COMPREPLY[@]}")" || return 1 ;;
    esac
  done
}
verify "options" completes "starling-train --d" --device --dry-run --describe-config
verify "none that only stands in a sentence" completes "starling-train --o" --output "!--oversubscribe"
verify "a value" completes "starling-train run.json --device " auto cpu cuda "!--device"
verify "behind an equals sign" completes "starling-train --device=c" cpu cuda "!auto"
verify "kinds" completes "starling-train --list t" topologies transports tasks "!models"
verify "keys" completes "starling-train run.json --set opt" optimizer.lr= optimizer.type= "!model.type="
verify "keys of types" completes "starling-train --set data.augment.c" data.augment.color_jitter.brightness= data.augment.cutmix=
verify "a key's values" completes "starling-train --set data.type=c" csv cifar10 "!text"
verify "of a section that may be a text" completes "starling-train --set sync.algorithm=a" allreduce async
verify "true and false" completes "starling-train --set tf32=" true false
verify "the topologies of show" completes "starling-topo show one" one-peer-exp "!ring"
verify "and its options" completes "starling-topo show ring --s" --svg --set "!--rounds"
verify "subcommands" completes "starling-topo " show simulate measure plan
verify "of each program" completes "starling-doctor " check blame clean
verify "what is a file is left to the shell" completes "starling-train --output " "!cpu"
for shell in zsh fish; do
  check "$shell: values and keys" 0 "one-peer-exp" "$root/scripts/completion.sh" $shell "$build/bin/starling-train"
  verify "too" grep -q "optimizer.lr=" .stdout
done
check "another shell" 2 "allowed: bash, zsh, fish" "$root/scripts/completion.sh" tcsh "$build/bin/starling-train"

# section PAGE NAME: what stands there
section() { sed -n "/^\.SH $2\$/,/^\.SH [^${2:0:1}]/p" "$1"; }
for program in train predict prepare topo bench doctor report; do
  "$root/scripts/man_page.sh" "$build/bin/starling-$program" >"$program.1"
  verify "starling-$program's page: options stand in OPTIONS" bash -c "$(declare -f section)"'; section "$1" OPTIONS | grep -A 1 "^.TP" | grep -q "help.fR$" && ! section "$1" SYNOPSIS | grep -q "help"' _ "$program.1"
  if command -v groff >/dev/null; then verify "which groff takes" bash -c '! groff -K utf8 -man -Tutf8 -ww "$1" 2>&1 >/dev/null | grep .' _ "$program.1"; fi
done
verify "each of an option's own, and what it is" grep -A 1 -F '\fB\-\-svg TEXT' topo.1
verify "subcommands' options too" bash -c "$(declare -f section)"'; section topo.1 OPTIONS | grep -q "^.SS starling..topo plan"'
finish
