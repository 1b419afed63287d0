# Builds for 64-bit ARM with Debian's cross compiler; tests run under qemu's user mode.
#
#   cmake -B build-aarch64 --toolchain cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# qemu does not pass a program's own limit on memory to the system, so a test that uses all it may have would take the
# whole machine. The limit is set around qemu instead.
find_program(ONEPASS_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
find_program(ONEPASS_PRLIMIT prlimit)
if(ONEPASS_QEMU AND ONEPASS_PRLIMIT)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${ONEPASS_PRLIMIT} --as=17179869184 ${ONEPASS_QEMU} -L /usr/aarch64-linux-gnu)
endif()
