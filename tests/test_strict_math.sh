#!/bin/sh
# -ffast-math and its parts are refused: by CMake, which names the flag, and by every source that computes.
#
#   test_strict_math.sh CMAKE COMPILER SOURCE_DIRECTORY
set -eu
cmake=$1 compiler=$2 source=$3
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1"
    failed=1
}

configure() { # NAME CFLAGS OPTION...
    name=$1 flags=$2
    shift 2
    CC=$compiler CFLAGS=$flags "$cmake" -S "$source" -B "$work/$name" -DONEPASS_TESTS=OFF -DONEPASS_TOOL=OFF \
        -DONEPASS_CUDA=OFF "$@" >"$work/$name.log" 2>&1
}

configure none "-O1 -fno-fast-math" || { cat "$work/none.log"; fail "plain flags were refused"; }
for flag in -ffast-math -ffinite-math-only -Ofast; do
    if configure "flags$flag" "-O2 $flag -g"; then fail "CMake takes $flag"; fi
    grep -q -e "onepass: $flag is among" "$work/flags$flag.log" || fail "CMake does not name $flag"
done
if configure release "" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_C_FLAGS_RELEASE=-O3 -ffast-math"; then
    fail "CMake takes -ffast-math in CMAKE_C_FLAGS_RELEASE"
fi

# The preprocessor is enough. A level of another processor lacks its header here, and cannot be compiled anyway.
for file in "$source"/src/kl/*.c "$source"/src/linear/*.c "$source"/src/head/*.c "$source"/src/levels/*.c \
    "$source"/src/core/t*.c "$source"/src/cpu/product_plan.c; do
    for flag in -ffast-math -ffinite-math-only -Ofast; do
        "$compiler" -std=c11 "$flag" -E -I "$source/include" -I "$source/src" "$file" >/dev/null 2>"$work/words" || true
        grep -qE 'error.*compile without -ffast-math|arm_neon.h: No such file' "$work/words" || fail "$file compiles with $flag"
    done
done
"$compiler" -std=c11 -O2 -fsyntax-only -I "$source/include" -I "$source/src" "$source/src/core/types.c" ||
    fail "types.c does not compile with plain flags"
exit $failed
