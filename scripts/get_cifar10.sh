#!/usr/bin/env bash
# Fetches CIFAR-10's official binary files (162 MiB) into DEST/cifar-10-batches-bin, checked by
# their published MD5 sum.
#   scripts/get_cifar10.sh DEST       then train with "data": {"type": "cifar10", "path": "DEST"}
# An archive that lies in DEST already is used instead of a download.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

url=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
sum=c32a1d4ab5d03f1284b67883e8d87530
case ${1:-} in '' | -*) die "usage: scripts/get_cifar10.sh DEST" ;; esac
dest=$1 folder=$1/cifar-10-batches-bin archive=$1/cifar-10-binary.tar.gz

complete() {
  local file
  for file in data_batch_{1,2,3,4,5}.bin test_batch.bin; do
    [ -f "$folder/$file" ] && [ "$(wc -c <"$folder/$file")" -eq 30730000 ] || return 1
  done
}
verified() { [ "$(md5sum <"$archive" | cut -d' ' -f1)" = "$sum" ]; }
if complete; then
  say "$folder is complete already"
  exit 0
fi
mkdir -p "$dest" || die "cannot make the folder $dest"
if ! { [ -f "$archive" ] && verified; }; then
  fetch=(wget --tries=3 --timeout=30 --output-document="$archive" "$url")
  if command -v curl >/dev/null; then fetch=(curl --fail --location --retry 3 --connect-timeout 30 --progress-bar --output "$archive" "$url"); fi
  "${fetch[@]}" || die "cannot download $url; with another machine's help, put the file at $archive and run this again"
  verified || die "$archive: the MD5 sum is not $sum; the download was damaged or the file has changed; run this again"
fi
tar -xzf "$archive" -C "$dest" || die "cannot unpack $archive in $dest; is the disk full?"
complete || die "$archive was unpacked, but $folder is not complete"
rm -f "$archive"
say "CIFAR-10 is in $folder: set \"path\": \"$dest\" in the config's \"data\""
