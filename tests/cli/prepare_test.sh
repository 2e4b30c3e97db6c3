#!/usr/bin/env bash
# Shards: from folders of pictures, through interruptions and damage. Training on them is
# tests/apps/data_program_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
golden=$root/tests/golden/pictures
prepare=$build/bin/starling-prepare
export prepare

for class in ant bee; do
  mkdir -p "pets/train/$class/more" "pets/val/$class"
  for i in $(seq 12); do cp "$golden/$([ $class = ant ] && echo 420.jpg || echo rgb8.png)" "pets/train/$class/$i.$([ $class = ant ] && echo jpg || echo PNG)"; done
  cp "$golden/turned6.jpg" "pets/train/$class/more/"
done
cp "$golden/444.jpg" "$golden/progressive.jpg" pets/val/ant/
cp "$golden/rgb_alpha8.png" "$golden/rgb16.png" pets/val/bee/

check "shards of pictures as they are" 0 "^30 pictures of 2 classes in 2 shards, .* in shards; 2 shards made now, 0 pictures left out" "$prepare" images pets shards
verify "without a terminal progress is plain lines" grep -q "^picture 30/30 100%  [0-9]* pictures/s$" .stdout
check "again there is nothing to do" 0 "0 shards made now" "$prepare" images pets shards
check "all records are checked" 0 "^30 records in 2 shards, as written$" "$prepare" check shards --threads 2
check "resized as JPEG" 0 "^30 pictures" "$prepare" images pets small --size 24 --quality 80 --threads 1

# Interrupted: 3,000 names of one picture, 30 in a shard.
python3 - "$golden/444.jpg" <<'END'
import os, shutil, sys
for label in "ab":
    os.makedirs("many/train/" + label)
    shutil.copy(sys.argv[1], f"many/train/{label}/0.jpg")
    for i in range(1, 1500):
        os.link(f"many/train/{label}/0.jpg", f"many/train/{label}/{i}.jpg")
END
many() { "$prepare" images many "$1" --size 20 --shard-pictures 30 "${@:2}"; }
export -f many
check "many pictures in one go" 0 "^3000 pictures of 2 classes in 100 shards" many whole
interrupt() { # DEST SIGNAL: sends it once some shards are written; the status of what got it
  many "$1" --threads 1 >/dev/null 2>&1 &
  local shell=$! process
  until [ -f "$1/train-00003.shard" ]; do sleep 0.005; done
  process=$(pgrep -P $shell || echo $shell)
  kill "-$2" "$process"
  wait $shell
}
interrupt killed KILL
verify "killed in the midst there is no index" bash -c '[ ! -e killed/shards.index ] && [ -e killed/train-00003.shard ]'
check "the same call goes on" 0 "of 3000 pictures are there already" many killed
verify "and makes the same bytes" diff -r whole killed
interrupt ended TERM
verify "a signal ends it with 128 + its number and leaves nothing half-written" bash -c "[ $? = 143 ] && [ ! -e ended/shards.index ] && ! ls ended/*.tmp"
check "to go on from there" 0 "of 3000 pictures are there already" many ended
verify "with the same bytes" diff -r whole ended
locked() { flock whole2 bash -c 'many whole2'; }
export -f locked
mkdir whole2
check "two calls for one folder" 2 "another starling-prepare is writing whole2; wait for it" locked

cp -r shards damaged
python3 -c 'with open("damaged/train-00000.shard", "r+b") as file: data = bytearray(file.read()); data[800] ^= 1; file.seek(0); file.write(data)'
check "a flipped byte is found and named" 2 "^starling-prepare: \[shards\] damaged/train-00000.shard: record 0 \(ant/1.jpg\): is damaged" "$prepare" check damaged
verify "and counted" grep -q "1 fault in the 2 shards of damaged; delete the files that are named" .stderr
printf '\xff\xd8\xff\xe0 no more' >pets/train/ant/9.jpg
check "a bad picture is named and left out" 0 "^29 pictures of 2 classes .* 1 picture left out" "$prepare" images pets strict --on-bad-image skip
verify "on stderr" grep -q "^starling-prepare: \[picture\] pets/train/ant/9.jpg: " .stderr
check "pixels with a quality" 2 "\-\-raw excludes --quality|--quality excludes --raw" "$prepare" images pets x --raw --size 20 --quality 80
check "a filter that would resize nothing" 2 "\-\-interpolation requires --size" "$prepare" images pets x --interpolation bicubic
check "an unknown subcommand" 2 "unknown subcommand 'imags'; did you mean 'images'\?; known: images, tokens, tokenizer, check" "$prepare" imags pets x
check "a folder of something else" 2 "is not empty and holds no shards" "$prepare" images many pets
check "no shards to check" 2 "there is no pets/shards.index; needed: a folder that starling-prepare" "$prepare" check pets
check "a folder that cannot be made" 5 "the folder pets/val/ant/444.jpg/x cannot be made" "$prepare" images many pets/val/ant/444.jpg/x
limited() { ulimit -f 40 && "$prepare" images many limited --raw --size 40; }
export -f limited
check "a limit of file sizes" 5 "limited/train-00000.shard: could not be written: File too large; raise the limit" limited
verify "leaves nothing half-written" bash -c '[ -z "$(ls limited)" ]'
if full_disk true 2>/dev/null; then
  check "a full disk ends with 5 and names the file" 5 "full/shards/train-00000.shard: could not be written: No space left on device; free some space" \
    full_disk "$prepare" images many full/shards --raw --size 40
else
  echo "skipped a full disk: no user namespaces here"
fi
finish
