# libmlcc_llvm.so: what codegen sees, plus LLVM, linked statically; opened at the first CPU compile.

file(GLOB mlcc_llvm_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/codegen/cpu/*.cpp)
list(FILTER mlcc_llvm_sources EXCLUDE REGEX "/codegen/cpu/client[^/]*\\.cpp$")
if(NOT mlcc_llvm_sources)
  message(STATUS "csrc/codegen/cpu has no sources yet: no libmlcc_llvm.so")
  return()
endif()

# LLVM's version file accepts equal major.minor only; the hint keeps an older default LLVM from being found.
find_package(LLVM 19.1 CONFIG REQUIRED HINTS /usr/lib/llvm-19/lib/cmake/llvm)
message(STATUS "LLVM ${LLVM_PACKAGE_VERSION}: ${LLVM_DIR}")

# LLVM's exported targets name the shared zlib and zstd; the wheel shall need neither.
find_library(MLCC_LIBZ_STATIC libz.a)
find_library(MLCC_LIBZSTD_STATIC libzstd.a)
foreach(pair "ZLIB::ZLIB|MLCC_LIBZ_STATIC" "zstd::libzstd_shared|MLCC_LIBZSTD_STATIC")
  string(REPLACE "|" ";" pair "${pair}")
  list(GET pair 0 target)
  list(GET pair 1 archive)
  if(TARGET ${target})
    if(NOT ${archive})
      message(FATAL_ERROR "${target}: no static archive found; install zlib1g-dev and libzstd-dev")
    endif()
    set_target_properties(${target} PROPERTIES
      IMPORTED_LOCATION ${${archive}} IMPORTED_LOCATION_RELEASE ${${archive}} IMPORTED_LOCATION_NONE ${${archive}})
  endif()
endforeach()

# The back ends, by LLVM's names of them, of which the sources are told as MLCC_WITH_X86 and the like.
set(mlcc_llvm_targets ${MLCC_LLVM_TARGETS})
list(TRANSFORM mlcc_llvm_targets REPLACE "^native$" "${LLVM_NATIVE_ARCH}")
list(REMOVE_DUPLICATES mlcc_llvm_targets)
set(mlcc_llvm_target_components "")
set(mlcc_llvm_target_definitions "")
foreach(target ${mlcc_llvm_targets})
  if(NOT target MATCHES "^(X86|AArch64)$" OR NOT target IN_LIST LLVM_TARGETS_TO_BUILD)
    message(FATAL_ERROR "MLCC_LLVM_TARGETS: ${target}: expected native, X86 or AArch64, and one that this LLVM has")
  endif()
  string(TOLOWER ${target} component)
  foreach(part codegen asmparser desc info disassembler)
    list(APPEND mlcc_llvm_target_components ${component}${part})
  endforeach()
  string(TOUPPER ${target} definition)
  list(APPEND mlcc_llvm_target_definitions MLCC_WITH_${definition})
endforeach()

llvm_map_components_to_libnames(mlcc_llvm_components
  core passes orcjit orcdebugging perfjitevents debuginfodwarf orctargetprocess jitlink support target mc object executionengine
  runtimedyld bitwriter irreader linker ${mlcc_llvm_target_components})

add_library(mlcc_llvm SHARED ${mlcc_llvm_sources})
target_include_directories(mlcc_llvm SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
separate_arguments(mlcc_llvm_definitions NATIVE_COMMAND "${LLVM_DEFINITIONS}")
target_compile_options(mlcc_llvm PRIVATE ${mlcc_llvm_definitions})
target_compile_definitions(mlcc_llvm PRIVATE ${mlcc_llvm_target_definitions})
target_link_libraries(mlcc_llvm PRIVATE mlcc_codegen mlcc_warnings ${mlcc_llvm_components})
if(NOT LLVM_ENABLE_RTTI)
  target_compile_options(mlcc_llvm PRIVATE -fno-rtti)
endif()
set(mlcc_llvm_map ${CMAKE_SOURCE_DIR}/cmake/mlcc_llvm.map)
target_link_options(mlcc_llvm PRIVATE
  -Wl,--version-script=${mlcc_llvm_map} -Wl,-Bsymbolic -Wl,--gc-sections -Wl,--as-needed)
# No C++ type or exception crosses the C table, so the library brings its own C++ library (libgcc_s is that of the
# system: a static one asks for symbols of the newest glibc); a sanitizer however must see every throw.
if(NOT MLCC_SANITIZE)
  target_link_options(mlcc_llvm PRIVATE -static-libstdc++ -Wl,-z,defs)
endif()
set_target_properties(mlcc_llvm PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${mlcc_package_dir}
  LINK_DEPENDS ${mlcc_llvm_map}
  SKIP_BUILD_RPATH ON INSTALL_RPATH "")
install(TARGETS mlcc_llvm LIBRARY DESTINATION mlcc)
