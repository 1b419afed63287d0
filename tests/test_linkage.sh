#!/bin/sh
# What the built files ask of the system and what they show of themselves.
#
#   test_linkage.sh HEADER SHARED_LIBRARY STATIC_LIBRARY [TOOL]
set -eu
export LC_ALL=C

header=$1 shared=$2 static=$3 tool=${4-}
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1"
    failed=1
}

# Nothing beyond the C library: no C++ or OpenMP runtime, no BLAS, no CUDA.
for file in "$shared" ${tool:+"$tool"}; do
    readelf -dW "$file" >"$work/dynamic"
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' "$work/dynamic" >"$work/needed"
    echo "$file needs: $(tr '\n' ' ' <"$work/needed")"
    if grep -vE '^(libc\.so|libm\.so|libpthread\.so|libdl\.so|ld-linux)' "$work/needed" >"$work/surplus"; then
        fail "$file is linked to $(tr '\n' ' ' <"$work/surplus")"
    fi
    # A build directory left in the file would make it load libraries from there on other machines.
    if grep -E '\((RPATH|RUNPATH)\)' "$work/dynamic"; then fail "$file carries a library path"; fi
    if grep -E '\(TEXTREL\)' "$work/dynamic"; then fail "$file has relocations in its code"; fi
    readelf -lW "$file" >"$work/segments"
    if grep 'GNU_STACK' "$work/segments" | grep -q 'RWE'; then fail "$file asks for an executable stack"; fi
done

readelf -dW "$shared" >"$work/dynamic"
major=$(sed -n 's/^#define ONEPASS_VERSION_MAJOR \([0-9]*\)$/\1/p' "$header")
grep -q "(SONAME).*\[libonepass\.so\.$major\]" "$work/dynamic" || fail "the soname is not libonepass.so.$major"
grep -q 'NODELETE' "$work/dynamic" || fail "$shared can be unloaded while its worker threads run"
grep -qE 'BIND_NOW|\bNOW\b' "$work/dynamic" || fail "$shared is not bound at load time"

# The exported symbols are the header's functions, no more and no fewer.
grep -v '^#' "$header" | tr '\n' ' ' | sed 's/ONEPASS_API /\n&/g' |
    sed -n 's/^ONEPASS_API [^(]*[ *]\(onepass_[a-z0-9_]*\)(.*/\1/p' | sort >"$work/declared"
readelf --dyn-syms -W "$shared" |
    awk '$5 != "LOCAL" && $7 != "UND" && $7 != "ABS" && $7 ~ /^[0-9]+$/ { sub(/@.*/, "", $8); print $8 }' |
    sort >"$work/exported"
[ -s "$work/declared" ] || fail "no function was found in $header"
diff "$work/declared" "$work/exported" >"$work/difference" || {
    cat "$work/difference"
    fail "declared (<) and exported (>) functions differ"
}
echo "$shared exports $(wc -l <"$work/exported") functions"

# A static library cannot hide its symbols from the program, so each must carry a prefix of ours.
readelf -sW "$static" |
    awk '$5 != "LOCAL" && $7 ~ /^[0-9]+$/ && NF >= 8 { print $8 }' | grep -vE '^onep(ass)?_' >"$work/foreign" || true
if [ -s "$work/foreign" ]; then fail "$static defines $(sort -u "$work/foreign" | tr '\n' ' ')"; fi

exit $failed
