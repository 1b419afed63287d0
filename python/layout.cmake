# Run as a script by the build: the package directory PACKAGE, with links to the files under ROOT/python/onepass. Links
# to files that are gone are removed.
cmake_minimum_required(VERSION 3.25)

file(GLOB_RECURSE files RELATIVE ${ROOT}/python/onepass ${ROOT}/python/onepass/*)
list(FILTER files EXCLUDE REGEX "(^|/)__pycache__/")

file(GLOB_RECURSE present RELATIVE ${PACKAGE} ${PACKAGE}/*)
foreach(path IN LISTS present)
    if(IS_SYMLINK ${PACKAGE}/${path} AND NOT path IN_LIST files)
        file(REMOVE ${PACKAGE}/${path})
    endif()
endforeach()

foreach(path IN LISTS files)
    cmake_path(GET path PARENT_PATH directory)
    file(MAKE_DIRECTORY ${PACKAGE}/${directory})
    file(CREATE_LINK ${ROOT}/python/onepass/${path} ${PACKAGE}/${path} SYMBOLIC)
endforeach()
