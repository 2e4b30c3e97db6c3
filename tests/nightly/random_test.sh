#!/usr/bin/env bash
# What users may give the programs, drawn at random (scripts/trials random), and that it notices
# programs that do other than they should.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export STARLING_BUILD=$build
check "drawn pictures, configs, options and signals" 0 "^300 of 300 trials hold" "$root/scripts/trials" random --trials 300 --seed 3 --keep-failures kept
# A program of another rate, which counts no test pictures and ends with 1 in place of 2.
mkdir -p other/bin
ln -s "$build"/bin/starling-p* other/bin/
cat >other/bin/starling-train <<'END'
#!/usr/bin/env bash
"$train" "$@" --set optimizer.lr=0.3 | sed 's/ + [1-9]/ + 0/'
[ "${PIPESTATUS[0]}" = 0 ]
END
chmod +x other/bin/starling-train
for kind in pictures config options; do
  check "$kind of another program" 1 "^FAILED" env STARLING_BUILD="$work/other" "$root/scripts/trials" random --kinds $kind --trials 8
done
check "a kind that is not there" 2 "invalid choice: 'none'" "$root/scripts/trials" random --kinds none
finish
