#!/bin/bash
# Tarball and .deb of a build: unpacked, moved elsewhere, each runs with an empty environment and its own libraries.
# Usage: package_test.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cpack --config "$build/CPackConfig.cmake" -B "$folder/packages" -G "TGZ;DEB" >cpack.log 2>&1 || { cat cpack.log; exit 1; }

check() {  # a prefix
  local moved="$folder/moved somewhere $2"
  mv "$1" "$moved"
  env -i "$moved/bin/weir" --version
  local told
  told=$(env -i "$moved/bin/weir" import "$moved/absent.onnx" 2>&1) && exit 1
  grep -q "absent.onnx" <<<"$told"
  # Whatever is in the package comes from the package, wherever it is.
  local library linked
  linked=$(env -i /usr/bin/ldd "$moved/bin/weir")
  while read -r library; do
    if [ -e "$moved/lib/$(basename "$library")" ] && [[ $library != "$moved"* ]]; then
      echo "$library is taken instead of the package's own"
      exit 1
    fi
  done < <(sed -n 's/.* => \(.*\) (0x.*/\1/p' <<<"$linked")
  if grep "not found" <<<"$linked"; then exit 1; fi
  grep -q "^.TH WEIR 1" "$moved/share/man/man1/weir.1"
}

mkdir tar deb
tar -C tar -xzf packages/*.tar.gz
check tar/* tarball
dpkg-deb -x packages/*.deb deb
check deb/opt/weir package
echo ok
