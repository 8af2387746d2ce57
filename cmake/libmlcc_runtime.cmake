# libmlcc_runtime.so and .a: what runs packages. Of the folders below csrc/package, as much as that needs: compiled
# for size, and without a C++ library of the system, so that libc and libm are all that it asks for.

set(mlcc_runtime_sources
  package/contents.cpp package/context.cpp package/mapped_file.cpp package/package.cpp package/ports.cpp
  package/runtime_api.cpp package/strided_copy.cpp package/targets.cpp package/terminate.cpp package/thread_pool.cpp
  runtime/arena_plan.cpp runtime/call_plan.cpp runtime/executable.cpp runtime/host_kernel.cpp runtime/kernel.cpp
  runtime/plan_memory.cpp runtime/size_expr.cpp
  support/bytes.cpp support/error.cpp support/hash.cpp support/lexer.cpp
  types/argument.cpp types/assumptions.cpp types/device.cpp types/dtype.cpp types/interval.cpp types/symbolic.cpp
  types/symbolic_prover.cpp types/symbolic_terms.cpp)
list(TRANSFORM mlcc_runtime_sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
set_property(GLOBAL PROPERTY mlcc_runtime_sources ${mlcc_runtime_sources})  # which the tests compile for AArch64

# The shared library is optimized as a whole. Objects of that kind are for this compiler alone, so the archive has others.
function(mlcc_runtime_library target kind)
  add_library(${target} ${kind} ${mlcc_runtime_sources})
  target_link_libraries(${target} PRIVATE mlcc_base mlcc_warnings)
  target_compile_options(${target} PRIVATE -Os -ffunction-sections -fdata-sections)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME mlcc_runtime)
endfunction()

mlcc_runtime_library(mlcc_runtime_static STATIC)
set_target_properties(mlcc_runtime_static PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

set(mlcc_runtime_map ${CMAKE_SOURCE_DIR}/cmake/mlcc_runtime.map)
mlcc_runtime_library(mlcc_runtime_shared SHARED)
target_sources(mlcc_runtime_shared PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/package/find_object.cpp)
target_link_options(mlcc_runtime_shared PRIVATE
  -Wl,--version-script=${mlcc_runtime_map} -Wl,--gc-sections -Wl,--as-needed -Wl,-Bsymbolic)
# A sanitizer must see every throw.
if(NOT MLCC_SANITIZE)
  target_link_options(mlcc_runtime_shared PRIVATE -static-libstdc++ -static-libgcc -Wl,-z,defs -Wl,-s)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(mlcc_runtime_shared PRIVATE -flto=2)
    target_link_options(mlcc_runtime_shared PRIVATE -flto=2 -Os -fuse-ld=bfd -Wl,-z,noseparate-code)
  endif()
endif()
set_target_properties(mlcc_runtime_shared PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${mlcc_package_dir}
  LINK_DEPENDS ${mlcc_runtime_map}
  SKIP_BUILD_RPATH ON INSTALL_RPATH "")
install(TARGETS mlcc_runtime_shared LIBRARY DESTINATION mlcc)
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/package/mlcc_runtime.h ${CMAKE_CURRENT_SOURCE_DIR}/package/mlcc_runtime.hpp
        DESTINATION mlcc/include)
