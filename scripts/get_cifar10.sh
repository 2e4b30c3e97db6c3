#!/usr/bin/env bash
# Fetches CIFAR-10's official binary files into DEST/cifar-10-batches-bin, checked by their published MD5 sum.
set -euo pipefail

url=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
sum=c32a1d4ab5d03f1284b67883e8d87530
size=170052171  # bytes
files=(data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin test_batch.bin)

usage() {
  cat <<END
usage: $(basename "$0") [--dry-run] DEST

Downloads $url (162 MiB), verifies its MD5 sum, and unpacks it to
DEST/cifar-10-batches-bin. Then train with "data": {"type": "cifar10", "path": "DEST"}.
An archive that lies in DEST already is used instead of a download.
  --dry-run   says what would be done, and does nothing
END
}
die() {
  echo "$(basename "$0"): $*" >&2
  exit "${status:-1}"
}

dry_run=false dest=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --dry-run) dry_run=true ;;
    -*) status=2 die "unknown option $1 (see --help)" ;;
    *) [ -z "$dest" ] || status=2 die "one folder at a time: $dest or $1? (see --help)"; dest=$1 ;;
  esac
  shift
done
[ -n "$dest" ] || { usage >&2; exit 2; }

folder=$dest/cifar-10-batches-bin
archive=$dest/cifar-10-binary.tar.gz

complete() {
  local file
  for file in "${files[@]}"; do
    [ -f "$folder/$file" ] && [ "$(wc -c <"$folder/$file")" -eq 30730000 ] || return 1
  done
}
verified() { [ "$(md5sum <"$archive" | cut -d' ' -f1)" = "$sum" ]; }

if complete; then
  echo "$folder is complete already."
  exit 0
fi
for tool in tar gzip md5sum; do
  command -v "$tool" >/dev/null || die "$tool is missing; install it first"
done
if command -v curl >/dev/null; then
  fetch=(curl --fail --location --retry 3 --connect-timeout 30 --progress-bar --output "$archive.part" "$url")
elif command -v wget >/dev/null; then
  fetch=(wget --tries=3 --timeout=30 --output-document="$archive.part" "$url")
else
  die "neither curl nor wget is installed; install one, or put the archive at $archive yourself"
fi

if $dry_run; then
  if [ -f "$archive" ]; then echo "would use $archive, if its MD5 sum is $sum"; else echo "would run: ${fetch[*]}"; fi
  echo "would verify the MD5 sum $sum"
  echo "would unpack ${#files[@]} files to $folder"
  exit 0
fi

mkdir -p "$dest" || die "cannot make the folder $dest"
if [ -f "$archive" ] && verified; then
  echo "using $archive"
else
  rm -f "$archive.part"
  "${fetch[@]}" || { rm -f "$archive.part"; die "cannot download $url; with another machine's help, put the file at $archive and run this again"; }
  mv "$archive.part" "$archive"
  verified || {
    found=$(wc -c <"$archive")
    rm -f "$archive"
    die "$url: the MD5 sum is not $sum ($found bytes of $size); the download was damaged or the file has changed; try again"
  }
fi
tar -xzf "$archive" -C "$dest" || die "cannot unpack $archive in $dest; is the disk full?"
complete || die "$archive was unpacked, but $folder is not complete"
rm -f "$archive"
echo "CIFAR-10 is in $folder: set \"path\": \"$dest\" in the config's \"data\"."
