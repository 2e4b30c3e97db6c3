#!/usr/bin/env bash
# scripts/check_docs.py finds what it looks for.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
docs=$root/scripts/check_docs.py
verify "docs/reference.md is up to date (scripts/reference.py >docs/reference.md)" bash -c '"$0"/scripts/reference.py | diff - "$0"/docs/reference.md' "$root"
verify "docs/benchmarks.md is up to date (scripts/benchmarks.py)" "$root/scripts/benchmarks.py" --check
check "a command of its tables is printed" 0 "^scripts/compare resnet20" "$root/scripts/benchmarks.py" 1
check "one that there is not" 2 "" "$root/scripts/benchmarks.py" 999
words() { printf 'w %.0s' $(seq "$1"); }

{
  echo "# A page"
  echo "It has $(words 27)end."
  printf '\n| %s |\n|---|\n' "$(words 25)"
  printf '\n`code that counts once` and [a link](#a-page) with %s\n' "$(words 24)" # 30 words
} >good.md
check "a page of short sentences" 0 '1 pages: 0 faults' "$docs" "$work/good.md"
words 31 >long.md
check "a long sentence" 2 'long.md:1: a sentence of 31 words; allowed: 30' "$docs" "$work/long.md"
printf '%0101d\n' 0 >wide.md
check "a wide line" 2 'wide.md:1: 101 columns; allowed: 100' "$docs" "$work/wide.md"
printf '# A page\n\n[one](nowhere.md), [two](good.md#b-page), `[no](link.md)`\n' >links.md
check "links that lead nowhere" 2 'nowhere.md, which is not there' "$docs" "$work/links.md"
verify "an anchor that is not there" grep -q 'good.md#b-page, which has no such heading' .stderr
verify "no more than these" grep -q '1 pages: 2 faults' .stdout
printf '| a | b |\n|---|---|\n| `x\|y` | 1 |\n\n| c | 2 |\n\n| a | b |\n| 1 | 2 |\n\n| a | b |\n|---|---|\n| 1 |\n' >tables.md
check "a table that a blank line parts" 2 'tables.md:5: a table of one line' "$docs" "$work/tables.md"
verify "one without a head" grep -q 'tables.md:7: a table without a head' .stderr
verify "a row that lacks a cell" grep -q 'tables.md:12: a row of 1 cells; its table has 2' .stderr
verify "no more than these" grep -q '1 pages: 3 faults' .stdout
mkdir site
echo '<a href="b.html#x">b</a><a href="c.html">c</a><img src="d.png">' >site/a.html
echo '<p id="y">b</p>' >site/b.html
check "links of a site" 2 '2 pages with 3 links: 3 faults' "$docs" --site site
finish
