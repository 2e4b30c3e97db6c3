#!/usr/bin/env bash
# Random damages (scripts/trials corrupt), and that it notices where checkpoints are not checked.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export STARLING_BUILD=$build
check "damages" 0 "20 of 20 trials hold" "$root/scripts/trials" corrupt --trials 20 --seed 3 --limit 60
# A program for which each list DONE is that of an older version, without checksums. Seed 2575 draws
# three zeroed pages.
mkdir -p trusting/bin
cat >trusting/bin/starling-train <<'END'
#!/usr/bin/env bash
for folder in "${@: -5:1}"/checkpoints/step-*; do
  if [ -f "$folder/DONE" ]; then echo "step ${folder##*-}" >"$folder/DONE"; fi
done
exec "$train" "$@"
END
chmod +x trusting/bin/starling-train
ln -s "$build/bin/starling-predict" trusting/bin/
check "a program that trusts its checkpoints" 1 "^FAILED .*the model has other bits" env STARLING_BUILD="$work/trusting" \
  "$root/scripts/trials" corrupt --trials 5 --seed 2575 --runs "1 rank"
check "a run that is not there" 2 "invalid choice: 'none'" "$root/scripts/trials" corrupt --runs none
finish
