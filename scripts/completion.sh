#!/usr/bin/env bash
# Completion for a shell: of the programs' options, subcommands and values, made of their --help and
# of what starling-train lists. What is no word here is a file.
#   scripts/completion.sh bash|zsh|fish PROGRAM...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case ${1:-} in bash | zsh | fish) ;; *) die "completion.sh: ${1:-}: allowed: bash, zsh, fish" ;; esac
shell=$1
shift

# Options (--long) of a help text, and subcommands with their first words.
options() { sed -nE 's/^ +(-[a-zA-Z],)?(--[a-z][a-z-]*).*/\2/p' <<<"$1" | sort -u; }
subcommands() { sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$1"; }
list() { "$train" --list "$1" | sed 's/ .*//'; }
line() { tr -s '\n' ' '; }

# Lines "KEY VALUE…" of a config: each key, with the values it may have where these are words.
keys() { "$train" --list keys --long | tr -s ' ' | tr -d ','; }

# "OPTION WORD…" for each option of a help text that has words to choose from.
values() { # HELP
  sed -nE 's/^ .*(--[a-z-]+) [A-Z]+:\{([^}]*)\}.*/\1 \2/p' <<<"$1" | tr ',' ' '
  sed -nE 's/^ *--list [A-Z]+ .* kind: (.*)/--list \1/p' <<<"$1" | tr -d ','
  grep -qE '^ *--algorithm ' <<<"$1" && echo "--algorithm $(list algorithms | line)"
  case $1 in
    *"--set "*"key of the topology"*) echo "--set $(sed -nE 's/^sync\.topology\.([a-z_]+)( .*)?$/\1=/p' <<<"$keys" | line)" ;;
    *"--set "*) echo "--set $(sed -E 's/( .*)?$/=/' <<<"$keys" | line)" ;;
  esac
}
# What stands where no option's value does: options, subcommands, names of topologies.
words() { # HELP
  options "$1"
  subcommands "$1"
  if grep -q "the topology's name" <<<"$1"; then list topologies; fi
}

# A program's function is a table of what may follow: SUBCOMMAND:WORD-BEFORE), the first that fits.
rows() { # HELP SUBCOMMAND
  local option rest
  while read -r option rest; do
    if [ -n "$option" ]; then row "${2:-*}:$option" "$rest"; fi
  done < <(values "$1")
  row "${2:-*}:*" "$(words "$1" | line)"
}
row() { # PATTERN WORDS
  case $shell in
    bash) printf '    %s) words="%s" ;;\n' "$1" "$2" ;;
    # Files fit only where no values are known.
    zsh) printf '  %s) compadd %s-- %s%s ;;\n' "$1" "$([[ $1 = *--set ]] && echo "-S '' ")" "$2" "$([[ $1 = *:\* ]] || echo "; return")" ;;
  esac
}
# What follows "KEY=".
key_rows() {
  local key rest
  while read -r key rest; do if [ -n "$rest" ]; then row "*:$key" "$rest"; fi; done <<<"$keys"
}

for program in "$@"; do
  name=$(basename "$program")
  train=$(dirname "$program")/starling-train
  whole=$("$program" --help)
  keys=$(keys)
  case $shell in
    bash)
      printf '_%s() {\n  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]-} words\n' "${name//-/_}"
      printf '  if [ "$word" = "=" ]; then word=""; elif [ "$before" = "=" ]; then before=${COMP_WORDS[COMP_CWORD - 2]-}; fi\n'
      printf '  case ${COMP_WORDS[1]-}:$before in\n'
      ;;
    zsh)
      printf '#compdef %s\nlocal before=${words[CURRENT-1]-}\nif compset -P "*="; then before=${${IPREFIX%%=}##*=}; fi\n' "$name"
      printf 'case ${words[2]-}:$before in\n'
      ;;
  esac
  if [ "$shell" != fish ]; then
    key_rows
    for sub in $(subcommands "$whole"); do rows "$("$program" "$sub" --help)" "$sub"; done
    rows "$whole"
  fi
  case $shell in
    bash)
      printf '  esac\n  if [[ $words = *= || $words = *"= "* ]]; then compopt -o nospace 2>/dev/null; fi\n'
      printf '  COMPREPLY=($(compgen -W "$words" -- "$word"))\n}\ncomplete -o default -F _%s %s\n' "${name//-/_}" "$name"
      ;;
    zsh) printf 'esac\n_files\n' ;;
    fish)
      condition=__fish_use_subcommand
      [ -n "$(subcommands "$whole")" ] || condition=true
      for sub in "" $(subcommands "$whole"); do
        help=$whole
        if [ -n "$sub" ]; then
          help=$("$program" "$sub" --help)
          printf "complete -c %s -n __fish_use_subcommand -a %s\n" "$name" "$sub"
          condition="'__fish_seen_subcommand_from $sub'"
          if grep -q "the topology's name" <<<"$help"; then printf 'complete -c %s -n %s -a "%s"\n' "$name" "$condition" "$(list topologies | line)"; fi
        fi
        for option in $(options "$help"); do
          chosen=$(values "$help" | sed -n "s/^$option //p" | head -1)
          if [ "$option" = --set ] && ! grep -q "key of the topology" <<<"$help"; then
            chosen+=$(while read -r key rest; do printf " $key=%s" $rest; done < <(grep ' .' <<<"$keys"))
          fi
          printf "complete -c %s -n %s -l %s%s\n" "$name" "$condition" "${option#--}" "${chosen:+ -x -a \"$chosen\"}"
        done
      done
      ;;
  esac
done
