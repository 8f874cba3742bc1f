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
  env -i "$moved/bin/weir" train "$moved/bin/absent.onnx" --data x --out y 2>&1 | grep -q "absent.onnx"
  # Whatever is in the package comes from the package, wherever it is.
  local library
  for library in "$moved"/lib/*; do
    env -i /usr/bin/ldd "$moved/bin/weir" | grep -F "$(basename "$library")" | grep -qF "$moved" || { echo "$library is taken from elsewhere"; exit 1; }
  done
  ! env -i /usr/bin/ldd "$moved/bin/weir" | grep "not found"
  head -1 "$moved/share/man/man1/weir.1" | grep -q "^.TH WEIR 1"
}

mkdir tar deb
tar -C tar -xzf packages/*.tar.gz
check tar/* tarball
dpkg-deb -x packages/*.deb deb
check deb/opt/weir package
echo ok
