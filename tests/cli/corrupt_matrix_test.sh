#!/usr/bin/env bash
# ctest: longer at night
# Random damages (scripts/corrupt_matrix; twenty at night), that it notices where checkpoints are
# not checked, and what it says to bad usage.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=$build
trials=5
if nightly; then trials=20; fi
check "damages" 0 "$trials of $trials trials hold" "$root/scripts/corrupt_matrix" --trials $trials --seed 3 --limit 60
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
  "$root/scripts/corrupt_matrix" --trials 5 --seed 2575 --runs "1 rank"
check "a run that is not there" 2 "invalid choice: 'none'" "$root/scripts/corrupt_matrix" --runs none
check "no program" 2 "starling-train is missing" env STARLING_BUILD="$work/nowhere" "$root/scripts/corrupt_matrix" --trials 1
finish
