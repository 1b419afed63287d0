#!/bin/sh
# A fully static program, position-independent or not, multiplies without loading a BLAS: dlopen in one brings a second
# C library, and OpenBLAS then crashes. Skipped (77) where the C library cannot be linked statically.
#
#   test_static.sh COMPILER INCLUDE_DIRECTORY STATIC_LIBRARY
set -eu
compiler=$1 include=$2 library=$3
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo 'int main(void) { return 0; }' >"$work/empty.c"
if ! "$compiler" -static "$work/empty.c" -o "$work/empty" -lm -lpthread -ldl 2>"$work/why"; then
    echo "skipped: this compiler links nothing statically: $(tail -1 "$work/why")"
    exit 77
fi

# Libraries of these names are on the path, whatever the machine has, and end the program that loads them.
cat >"$work/trap.c" <<'END'
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { _exit(3); }
void cblas_sgemm(void) {}
void cblas_dgemm(void) {}
int openblas_get_num_threads(void) { return 1; }
void openblas_set_num_threads(int threads) { (void)threads; }
END
mkdir "$work/traps"
for name in libopenblas.so.0 libcuda.so.1 libcublasLt.so.13 libcublasLt.so.12 libcublasLt.so.11; do
    "$compiler" -shared -fPIC "$work/trap.c" -o "$work/traps/$name"
done
export LD_LIBRARY_PATH="$work/traps"

for kind in -static -static-pie; do
    if ! "$compiler" "$kind" "$work/empty.c" -o "$work/empty" 2>"$work/why" || ! "$work/empty"; then
        echo "left out: $kind: $(tail -1 "$work/why")"
        continue
    fi
    "$compiler" -std=c11 -O1 -fPIE "$kind" -I "$include" "$here/static_program.c" "$library" -lm -lpthread -ldl \
        -o "$work/program" 2>"$work/warnings" || { cat "$work/warnings"; echo "FAILED: $kind does not link"; exit 1; }
    status=0
    "$work/program" || status=$?
    [ "$status" = 0 ] || { echo "FAILED: $kind: exit status $status (3: it loaded a library)"; exit 1; }
    echo "$kind: ok"
done
