# Flags, linker and compiler cache, common to all targets.

find_program(MLCC_CCACHE ccache)
if(MLCC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths inside of a clone count from where it lies, so that clones share what was compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                  ${MLCC_CCACHE})
endif()

# g++ looks for a file named ld.lld, Debian installs ld.lld-19.
find_program(MLCC_LLD NAMES ld.lld-19 ld.lld)
if(MLCC_LLD)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/linker)
  file(CREATE_LINK ${MLCC_LLD} ${CMAKE_BINARY_DIR}/linker/ld.lld SYMBOLIC)
  add_link_options(-fuse-ld=lld -B${CMAKE_BINARY_DIR}/linker)
endif()

add_compile_options(-ffunction-sections -fdata-sections)
# Bitwise equal results need this also in our own C++ (constant folding, the interpreter).
add_compile_options(-ffp-contract=off)

if(MLCC_SANITIZE)
  add_compile_options(-fsanitize=${MLCC_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MLCC_SANITIZE})
endif()

# Linked into all of our targets, never into what comes from outside.
add_library(mlcc_warnings INTERFACE)
target_compile_options(mlcc_warnings INTERFACE -Wall -Wextra -Wswitch-enum)
if(MLCC_WERROR)
  target_compile_options(mlcc_warnings INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of the optimizer: std::string's operator+ in g++ 12 (GCC bug 105651), and
  # everything that a sanitizer's extra branches make look uninitialized.
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(mlcc_warnings INTERFACE -Wno-restrict -Wno-missing-field-initializers)
  endif()
  if(MLCC_SANITIZE)
    target_compile_options(mlcc_warnings INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
