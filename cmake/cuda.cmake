# The CUDA half of the library: finds nvcc, compiles every src/*/*.cu into a fatbin, has the fatbins embedded.
#
# ONEPASS_CUDA   AUTO: if nvcc is found and works; ON: required; OFF: not at all
# ONEPASS_NVCC   the compiler; looked for in $CUDACXX, PATH, /usr/local/cuda and where ./dev build --cuda-wheels puts it
#
# When pip builds the wheel, the compiler that it has fetched (cmake/wheel_backend.py) comes before that of the machine:
# every machine builds the same kernels. Where that nvcc finds no C++ compiler, NVRTC does its work (cmake/nvrtc.py).
#
# Adds to onepass_sources, and ONEPASS_HAVE_CUDA to what the library's own files share. No CUDA header or library is
# used by the C side, and nothing here is needed at run time.

set(ONEPASS_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set_property(CACHE ONEPASS_CUDA PROPERTY STRINGS AUTO ON OFF)

set(onepass_have_cuda OFF)
file(GLOB onepass_cu CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/*.cu)
if(ONEPASS_CUDA AND onepass_cu)
    set(onepass_cache $ENV{XDG_CACHE_HOME})
    if(NOT onepass_cache)
        set(onepass_cache $ENV{HOME}/.cache)
    endif()
    file(GLOB onepass_wheels ${onepass_cache}/onepass/nvcc-*/nvidia/cu*/bin)
    set(onepass_cudacxx "$ENV{CUDACXX}")
    if(onepass_cudacxx MATCHES "/" AND NOT EXISTS "${onepass_cudacxx}" AND NOT ONEPASS_NVCC)
        message(FATAL_ERROR "CUDACXX is ${onepass_cudacxx}, and there is no such file. Without CUDACXX nvcc is looked for "
                            "in PATH and /usr/local/cuda.")
    endif()
    cmake_path(GET onepass_cudacxx PARENT_PATH onepass_cudacxx)
    set(onepass_fetched "")
    if(SKBUILD)
        find_package(Python3 3.8 REQUIRED COMPONENTS Interpreter)
        set(onepass_nvrtc ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/nvrtc.py)
        execute_process(COMMAND ${onepass_nvrtc} --wheels OUTPUT_VARIABLE onepass_fetched)
        string(REPLACE "\n" "/bin;" onepass_fetched "${onepass_fetched}")
    endif()
    find_program(ONEPASS_NVCC nvcc HINTS ${onepass_cudacxx} ${onepass_fetched}
                 PATHS /usr/local/cuda/bin ${onepass_wheels})
    mark_as_advanced(ONEPASS_NVCC)

    # onepass_try_compiler(WORDS...): sets onepass_have_cuda and onepass_nvcc if that command compiles a kernel, and
    # onepass_text to what it said if not.
    function(onepass_try_compiler)
        set(trial ${PROJECT_BINARY_DIR}/cuda/trial)
        file(WRITE ${trial}.cu "extern \"C\" __global__ void trial() {}\n")
        execute_process(COMMAND ${ARGN} --version RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
        if(NOT failed AND text MATCHES "release ([0-9]+\\.[0-9]+)")
            set(onepass_cuda_release ${CMAKE_MATCH_1} PARENT_SCOPE)
            # What is missing beside it, a C++ compiler above all, it says only when it is used.
            execute_process(COMMAND ${ARGN} -fatbin -gencode=arch=compute_80,code=sm_80 -o ${trial}.fatbin ${trial}.cu
                            RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
            if(NOT failed)
                set(onepass_have_cuda ON PARENT_SCOPE)
                set(onepass_nvcc "${ARGN}" PARENT_SCOPE)
            endif()
        endif()
        set(onepass_text "${text}" PARENT_SCOPE)
    endfunction()

    if(NOT ONEPASS_NVCC)
        set(onepass_why "nvcc was not found; ./dev build --cuda-wheels fetches one")
    else()
        onepass_try_compiler(${ONEPASS_NVCC})
        set(onepass_why "${ONEPASS_NVCC} does not work here: ${onepass_text}")
    endif()
    if(SKBUILD AND NOT onepass_have_cuda)
        onepass_try_compiler(${onepass_nvrtc})
        string(APPEND onepass_why "\nNor does NVRTC: ${onepass_text}")
    endif()
    if(onepass_have_cuda)
        message(STATUS "CUDA kernels: ${onepass_nvcc}, CUDA ${onepass_cuda_release}")
    elseif(ONEPASS_CUDA STREQUAL "AUTO")
        message(STATUS "CUDA kernels: none, ${onepass_why}")
    else()
        message(FATAL_ERROR "ONEPASS_CUDA is ${ONEPASS_CUDA}, but ${onepass_why}\n"
                            "-DONEPASS_CUDA=OFF builds without CUDA (with pip: --config-settings=cmake.define.ONEPASS_CUDA=OFF)")
    endif()
endif()

if(NOT onepass_have_cuda)
    return()
endif()

# sm_80 for Ampere and Ada, sm_90 for Hopper, PTX for what comes after. No fast-math: NaN, infinities and subnormals are
# part of the definition. No contraction either way is asked for: the kernels say themselves where they fuse.
set(onepass_nvcc_flags -O3 -std=c++14 -Xfatbin=-compress-all -I${PROJECT_SOURCE_DIR}/src)
if(ONEPASS_LINE_INFO)
    list(APPEND onepass_nvcc_flags -lineinfo)
endif()
set(onepass_targets
    -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_80,code=compute_80)
# Files named *_sm90a.cu use instructions that Hopper alone has: no other device is given them (src/cuda/device.c loads
# on without), and CUDA before 12.0 does not know them.
if(onepass_cuda_release VERSION_LESS 12.0)
    list(FILTER onepass_cu EXCLUDE REGEX "_sm90a\\.cu$")
endif()

set(onepass_cuda_dir ${PROJECT_BINARY_DIR}/cuda)
set(onepass_fatbin_script ${PROJECT_SOURCE_DIR}/cmake/fatbin.cmake)

# onepass_add_fatbin(SOURCE FATBIN): compiles one .cu file; the names of its kernels are in FATBIN.kernels, what it
# depends on in FATBIN.d.
function(onepass_add_fatbin source fatbin)
    set(targets ${onepass_targets})
    set(words "sm_80, sm_90 and PTX")
    if(source MATCHES "_sm90a\\.cu$")
        set(targets -gencode=arch=compute_90a,code=sm_90a)
        set(words "sm_90a")
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    add_custom_command(OUTPUT ${fatbin} ${fatbin}.kernels
        COMMAND ${CMAKE_COMMAND} -DSTEP=compile "-DNVCC=${onepass_nvcc}" "-DFLAGS=${onepass_nvcc_flags};${targets}"
                -DSOURCE=${source} -DOUTPUT=${fatbin} -P ${onepass_fatbin_script}
        DEPENDS ${source} ${onepass_fatbin_script} DEPFILE ${fatbin}.d
        COMMENT "Compiling ${name} for ${words}" VERBATIM)
endfunction()

set(onepass_fatbins "")
foreach(source ${onepass_cu})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src OUTPUT_VARIABLE name)
    string(REGEX REPLACE "[/.]" "_" stem ${name})
    string(REGEX REPLACE "_cu$" "" stem ${stem})
    onepass_add_fatbin(${source} ${onepass_cuda_dir}/${stem}.fatbin)
    list(APPEND onepass_fatbins ${onepass_cuda_dir}/${stem}.fatbin)
endforeach()

set(onepass_fatbin_lists ${onepass_cuda_dir}/fatbin_images.inc ${onepass_cuda_dir}/fatbin_kernels.inc)
add_custom_command(OUTPUT ${onepass_fatbin_lists}
    COMMAND ${CMAKE_COMMAND} -DSTEP=list "-DFATBINS=${onepass_fatbins}" -DDIRECTORY=${onepass_cuda_dir}
            -P ${onepass_fatbin_script}
    DEPENDS ${onepass_fatbins} ${onepass_fatbin_script} COMMENT "Listing the kernels" VERBATIM)

# The plans number the kernels by that list (src/cuda/kernels.h).
file(GLOB onepass_cuda_plans CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/cuda/*.c src/*/cuda*.c)
list(APPEND onepass_sources ${onepass_cuda_plans})
list(REMOVE_DUPLICATES onepass_sources)
set_source_files_properties(${onepass_cuda_plans} PROPERTIES
    OBJECT_DEPENDS "${onepass_fatbin_lists}" COMPILE_OPTIONS "-I${onepass_cuda_dir}")
# A compiler does not know that the assembler will read the fatbins.
set_source_files_properties(src/cuda/fatbin.c PROPERTIES
    OBJECT_DEPENDS "${onepass_fatbins};${onepass_fatbin_lists}"
    COMPILE_OPTIONS "-I${onepass_cuda_dir};-fno-lto"
    COMPILE_DEFINITIONS "ONEPASS_CUDA_RELEASE=\"${onepass_cuda_release}\"")
target_compile_definitions(onepass_private INTERFACE ONEPASS_HAVE_CUDA=1)
if(NOT onepass_cuda_release VERSION_LESS 12.0)
    target_compile_definitions(onepass_private INTERFACE ONEPASS_HAVE_SM90A=1)
endif()
