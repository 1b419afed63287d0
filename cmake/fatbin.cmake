# Run as a script by the build, twice.
#
# One .cu file into one fatbin, with the list of its kernels beside it:
#   cmake -DSTEP=compile -DNVCC=... "-DFLAGS=..." -DSOURCE=kl.cu -DOUTPUT=kl.fatbin -P fatbin.cmake
# writes kl.fatbin, kl.fatbin.d (what it depends on), kl.fatbin.kernels (one name a line) and kl.fatbin.ptxas (what the
# assembler said). A kernel that spills registers or needs a stack frame fails the build: it would run, slowly. One that
# has been measured with what it spills says so in its source: "NAME: spills up to N bytes".
#
# The lists that src/cuda/fatbin.c includes:
#   cmake -DSTEP=list "-DFATBINS=a.fatbin;b.fatbin" -DDIRECTORY=... -P fatbin.cmake
cmake_minimum_required(VERSION 3.25)

if(STEP STREQUAL "compile")
    execute_process(COMMAND ${NVCC} -fatbin ${FLAGS} -Xptxas=-v -MD -MF ${OUTPUT}.d -MT ${OUTPUT}
                            -o ${OUTPUT}.new ${SOURCE}
                    RESULT_VARIABLE result OUTPUT_VARIABLE log ERROR_VARIABLE log)
    file(WRITE ${OUTPUT}.ptxas "${log}")
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${SOURCE} does not compile:\n${log}")
    endif()
    # Everything but the assembler's report is a warning someone should see.
    string(REGEX REPLACE "(^|\n)(ptxas info|    [0-9]+ bytes stack frame)[^\n]*" "" rest "${log}")
    string(STRIP "${rest}" rest)
    if(rest)
        message("${rest}")
    endif()
    string(REGEX MATCHALL "Function properties for [^\n]*\n +[0-9]+ bytes stack frame, [^\n]*" properties "${log}")
    set(spilling "")
    file(READ ${SOURCE} text)
    foreach(one IN LISTS properties)
        if(one MATCHES "\n +0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
            continue()
        endif()
        # unless the source says of the kernel "NAME: spills up to N bytes"
        string(REGEX MATCH "for ([^\n]*)\n.* ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads" spilled "${one}")
        set(kernel "${CMAKE_MATCH_1}")
        set(stores "${CMAKE_MATCH_2}")
        if(text MATCHES "${kernel}: spills up to ([0-9]+) bytes" AND stores LESS_EQUAL CMAKE_MATCH_1)
            continue()
        endif()
        string(APPEND spilling "\n  ${one}")
    endforeach()
    if(spilling)
        message(FATAL_ERROR "${SOURCE}: kernels with a stack frame or spilled registers:${spilling}")
    endif()
    string(REGEX MATCHALL "Compiling entry function '[^']*'" entries "${log}")
    list(TRANSFORM entries REPLACE ".*'(.*)'" "\\1")
    list(REMOVE_DUPLICATES entries)
    if(NOT entries)
        message(FATAL_ERROR "${SOURCE}: no kernel was found in what the assembler said:\n${log}")
    endif()
    list(JOIN entries "\n" entries)
    file(WRITE ${OUTPUT}.kernels "${entries}\n")
    file(RENAME ${OUTPUT}.new ${OUTPUT})

elseif(STEP STREQUAL "list")
    set(images "")
    set(kernels "")
    set(index 0)
    foreach(fatbin IN LISTS FATBINS)
        cmake_path(GET fatbin STEM stem)
        string(APPEND images "IMAGE(${stem}, \"${fatbin}\")\n")
        file(STRINGS ${fatbin}.kernels names)
        foreach(name IN LISTS names)
            list(APPEND kernels "KERNEL(${name}, ${index})")
        endforeach()
        math(EXPR index "${index} + 1")
    endforeach()
    list(SORT kernels COMPARE STRING) # by bytes, as strcmp does: the names are searched by halving
    list(JOIN kernels "\n" kernels)
    file(WRITE ${DIRECTORY}/fatbin_images.inc "${images}")
    file(WRITE ${DIRECTORY}/fatbin_kernels.inc "${kernels}\n")

else()
    message(FATAL_ERROR "fatbin.cmake: STEP is \"${STEP}\"; it must be compile or list")
endif()
