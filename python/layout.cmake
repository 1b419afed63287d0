# Run as a script by the build: the package directory PACKAGE, with links to the Python files under ROOT/python/onepass
# and to the files EXPORTED (paths from ROOT) under export/sources. Links to files that are gone are removed.
cmake_minimum_required(VERSION 3.25)

file(GLOB_RECURSE files RELATIVE ${ROOT}/python/onepass ${ROOT}/python/onepass/*)
list(FILTER files EXCLUDE REGEX "(^|/)__pycache__/")
list(TRANSFORM EXPORTED PREPEND export/sources/ OUTPUT_VARIABLE exported)

file(GLOB_RECURSE present RELATIVE ${PACKAGE} ${PACKAGE}/*)
foreach(path IN LISTS present)
    if(IS_SYMLINK ${PACKAGE}/${path} AND NOT path IN_LIST files AND NOT path IN_LIST exported)
        file(REMOVE ${PACKAGE}/${path})
    endif()
endforeach()

function(link source path)
    cmake_path(GET path PARENT_PATH directory)
    file(MAKE_DIRECTORY ${PACKAGE}/${directory})
    file(CREATE_LINK ${source} ${PACKAGE}/${path} SYMBOLIC)
endfunction()
foreach(path IN LISTS files)
    link(${ROOT}/python/onepass/${path} ${path})
endforeach()
foreach(path IN LISTS EXPORTED)
    link(${ROOT}/${path} export/sources/${path})
endforeach()
