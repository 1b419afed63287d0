#!/bin/sh
# Installs a build, moves the installed tree, and builds an outside program against it in every way the documents offer.
#
#   test_install.sh BUILD_DIRECTORY C_COMPILER CMAKE_GENERATOR
set -eu

build=$1 compiler=$2
export CMAKE_GENERATOR="$3"
outside=$(cd "$(dirname "$0")/outside" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "== $*"; }
fail() {
    echo "FAILED: $1"
    exit 1
}

say "install, then move: package files must not remember where they were made"
cmake --install "$build" --prefix "$work/first" >"$work/log" || fail "cmake --install: $(cat "$work/log")"
mv "$work/first" "$work/moved"
prefix=$work/moved
pc=$(find "$prefix" -name onepass.pc)
libdir=$(dirname "$(dirname "$pc")")

say "every file is there"
for file in include/onepass.h bin/onepass share/man/man1/onepass.1 share/bash-completion/completions/onepass \
    share/zsh/site-functions/_onepass share/fish/vendor_completions.d/onepass.fish; do
    [ -s "$prefix/$file" ] || fail "$file is missing or empty"
done
for file in libonepass.so libonepass.so.0 libonepass.a cmake/onepass/onepassConfig.cmake \
    cmake/onepass/onepassConfigVersion.cmake; do
    [ -s "$libdir/$file" ] || fail "$libdir/$file is missing or empty"
done
if grep -rlIF -e "$work/first" -e "$build" "$prefix"; then fail "the text files above name the place of the build"; fi
! command -v bash >/dev/null || bash -n "$prefix/share/bash-completion/completions/onepass"

say "the installed tool runs"
"$prefix/bin/onepass" --version

say "find_package, shared and static"
cmake -S "$outside" -B "$work/build" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/build"
"$work/build/outside_shared"
"$work/build/outside_static"

say "a version the package cannot satisfy is refused"
if cmake -S "$outside" -B "$work/refused" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix" \
    -DOUTSIDE_VERSION=999.0 >"$work/log" 2>&1; then
    fail "find_package(onepass 999.0) succeeded"
fi

# Word splitting of pkg-config's answer is how it is meant to be used.
say "pkg-config, shared"
export PKG_CONFIG_PATH="$libdir/pkgconfig"
# shellcheck disable=SC2046
"$compiler" -std=c11 -Wall -Wextra -Wpedantic -Werror "$outside/main.c" -o "$work/shared" \
    $(pkg-config --cflags --libs onepass)
LD_LIBRARY_PATH=$libdir "$work/shared"
readelf -d "$work/shared" | grep -q 'libonepass\.so\.0' || fail "the program is not linked to the shared library"

say "pkg-config, static"
# shellcheck disable=SC2046
"$compiler" -std=c11 -Wall -Wextra -Wpedantic -Werror "$outside/main.c" -o "$work/static" -static \
    $(pkg-config --static --cflags --libs onepass)
"$work/static"

echo "the installed copy works"
