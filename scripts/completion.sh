#!/usr/bin/env bash
# Completion of the programs' options and subcommands for a shell, made of their --help:
# scripts/completion.sh bash|zsh|fish PROGRAM...
set -euo pipefail
shell=$1
shift
# Options (--long) of a help text, and subcommands with their first words.
options() { grep -oE '(^|[ ,])--[a-z][a-z-]*' <<<"$1" | grep -oE -- '--[a-z-]+' | sort -u; }
subcommands() { sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$1"; }

for program in "$@"; do
  name=$(basename "$program")
  whole=$("$program" --help)
  case $shell in
    bash)
      printf '_%s() {\n  local word=${COMP_WORDS[COMP_CWORD]}\n  case ${COMP_WORDS[1]-} in\n' "${name//-/_}"
      for sub in $(subcommands "$whole"); do
        printf '    %s) words="%s" ;;\n' "$sub" "$(options "$("$program" "$sub" --help)" | tr '\n' ' ')"
      done
      printf '    *) words="%s" ;;\n  esac\n' "$( (options "$whole" && subcommands "$whole") | tr '\n' ' ')"
      printf '  COMPREPLY=($(compgen -W "$words" -- "$word"))\n}\n'
      printf 'complete -o default -F _%s %s\n' "${name//-/_}" "$name"
      ;;
    zsh)
      printf '#compdef %s\n' "$name"
      printf 'local -a words\ncase ${words[2]-} in\n'
      for sub in $(subcommands "$whole"); do
        printf '  %s) compadd -- %s ;;\n' "$sub" "$(options "$("$program" "$sub" --help)" | tr '\n' ' ')"
      done
      printf '  *) compadd -- %s ;;\nesac\n_files\n' "$( (options "$whole" && subcommands "$whole") | tr '\n' ' ')"
      ;;
    fish)
      for option in $(options "$whole"); do printf "complete -c %s -n __fish_use_subcommand -l %s\n" "$name" "${option#--}"; done
      for sub in $(subcommands "$whole"); do
        printf "complete -c %s -n __fish_use_subcommand -a %s\n" "$name" "$sub"
        for option in $(options "$("$program" "$sub" --help)"); do
          printf "complete -c %s -n '__fish_seen_subcommand_from %s' -l %s\n" "$name" "$sub" "${option#--}"
        done
      done
      ;;
    *)
      echo "completion.sh: $shell: allowed: bash, zsh, fish" >&2
      exit 2
      ;;
  esac
done
