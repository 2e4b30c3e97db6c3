#!/usr/bin/env bash
# Data under mpirun: ranks that have other data than rank 0, and a bad test picture of one rank. All
# else is tests/apps/data_program_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
golden=$root/tests/golden/pictures
for class in a b; do
  mkdir -p "first/train/$class" "first/val/$class"
  for i in 0 1 2 3 4 5 6 7 8 9; do cp "$golden/rgb8.png" "first/train/$class/$i.png"; done
  for i in 0 1 2 3; do cp "$golden/420.jpg" "first/val/$class/$i.jpg"; done
done
cp -r first more && cp first/train/a/0.png more/train/a/more.png
cp -r first bad && truncate -s 600 bad/val/a/1.jpg
cat >run.json <<'END'
{
  "model": {"type": "mlp", "hidden": [4]}, "threads": 1,
  "data": {"type": "image_folder", "path": "first", "image_size": 8, "test_resize": 8, "test_crop": 8},
  "batch_size": 2, "steps": 12, "log_every": 1, "tensorboard": false, "optimizer": {"type": "sgd", "lr": 0.01},
  "checkpoint": {"every_steps": 4}, "evaluate": {"every_steps": 4}
}
END
apart() { # FOLDER: the second rank has its data there
  timeout 60 mpirun --oversubscribe -n 1 "$train" run.json --output apart : -n 1 "$train" run.json --output apart --set data.path="$1"
}
export -f apart
check "a picture more on one rank" 2 "rank 1 \(host [^ ]+, data.path more\) has 21 training samples, rank 0 \(host [^ ]+, data.path first\) has 20" apart more
verify "in one line" bash -c '[ "$(grep -c "data" .stderr)" = 1 ]'
verify "and no folder was made" test ! -e apart
check "a bad test picture ends the run by name" 2 "rank 1: .*bad/val/a/1.jpg: cannot be decoded" timeout 60 mpirun --oversubscribe -n 2 "$train" run.json --set data.path=bad --output cut
verify "with one line of error" bash -c '[ "$(grep -c "1.jpg" .stderr)" = 1 ]'
verify "but the checkpoint that was due is there" test -f cut/checkpoints/step-4/DONE
cp first/val/a/1.jpg bad/val/a/1.jpg
check "the run goes on once the picture is mended" 0 "continuing after step 4" ranks 2 "$train" run.json --set data.path=bad --resume cut
finish
