# libmlcc_runtime.so and .a: what runs packages. Of the folders below csrc/package, as much as that needs: compiled
# for size, and without a C++ library of the system, so that libc and libm are all that it asks for.

set(mlcc_runtime_sources
  package/contents.cpp package/context.cpp package/layouts.cpp package/mapped_file.cpp package/package.cpp
  package/ports.cpp package/program.cpp package/recipes.cpp package/refit.cpp package/runner.cpp package/runtime_api.cpp
  package/status.cpp package/targets.cpp package/terminate.cpp package/thread_pool.cpp
  runtime/arena_plan.cpp runtime/call_plan.cpp runtime/executable.cpp runtime/host_kernel.cpp runtime/kernel.cpp
  runtime/plan_memory.cpp runtime/size_expr.cpp
  support/bytes.cpp support/error.cpp support/hash.cpp support/lexer.cpp
  types/argument.cpp types/device.cpp types/dtype.cpp types/interval.cpp types/symbolic.cpp types/symbolic_terms.cpp)
list(TRANSFORM mlcc_runtime_sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
set_property(GLOBAL PROPERTY mlcc_runtime_sources ${mlcc_runtime_sources})  # which the tests compile for AArch64

include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-Oz mlcc_has_oz)
set(mlcc_for_size $<IF:$<BOOL:${mlcc_has_oz}>,-Oz,-Os>)

# The shared library is optimized as a whole. Objects of that kind are for this compiler alone, so the archive has others.
function(mlcc_runtime_library target kind)
  add_library(${target} ${kind} ${mlcc_runtime_sources})
  target_link_libraries(${target} PRIVATE mlcc_base mlcc_warnings)
  target_compile_options(${target} PRIVATE ${mlcc_for_size} -ffunction-sections -fdata-sections)
endfunction()

mlcc_runtime_library(mlcc_runtime_static STATIC)
set_target_properties(mlcc_runtime_static PROPERTIES OUTPUT_NAME mlcc_runtime ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

# The shared library, from objects that are compiled once: as the wheel has it, found by its path, and as it is
# installed for programs, by its version.
set(mlcc_runtime_map ${CMAKE_SOURCE_DIR}/cmake/mlcc_runtime.map)
mlcc_runtime_library(mlcc_runtime_objects OBJECT)
target_sources(mlcc_runtime_objects PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/package/find_object.cpp)
# A sanitizer must see every throw.
if(NOT MLCC_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(mlcc_runtime_objects PRIVATE -flto)
endif()
function(mlcc_runtime_shared_library target folder)
  add_library(${target} SHARED $<TARGET_OBJECTS:mlcc_runtime_objects>)
  target_link_libraries(${target} PRIVATE mlcc_base)
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${mlcc_runtime_map} -Wl,--gc-sections -Wl,--as-needed -Wl,-Bsymbolic)
  if(NOT MLCC_SANITIZE)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,-z,defs -Wl,-s)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_link_options(${target} PRIVATE -flto -flto-partition=one ${mlcc_for_size} -fuse-ld=bfd -Wl,-z,noseparate-code)
    endif()
  endif()
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME mlcc_runtime
    LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY ${folder}
    LINK_DEPENDS ${mlcc_runtime_map}
    SKIP_BUILD_RPATH ON INSTALL_RPATH "")
endfunction()

set(mlcc_runtime_headers ${CMAKE_CURRENT_SOURCE_DIR}/package/mlcc_runtime.h ${CMAKE_CURRENT_SOURCE_DIR}/package/mlcc_runtime.hpp)
mlcc_runtime_shared_library(mlcc_runtime_shared ${mlcc_package_dir})
install(TARGETS mlcc_runtime_shared LIBRARY DESTINATION mlcc)
install(FILES ${mlcc_runtime_headers} DESTINATION mlcc/include)

# For programs: `cmake --install FOLDER --component runtime --prefix PREFIX`, which others leave out.
include(GNUInstallDirs)
mlcc_runtime_shared_library(mlcc_runtime_versioned ${CMAKE_BINARY_DIR}/lib)
set_target_properties(mlcc_runtime_versioned PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 1 EXCLUDE_FROM_ALL ON)
set_target_properties(mlcc_runtime_static PROPERTIES EXCLUDE_FROM_ALL ON)
add_custom_target(mlcc_runtime_install)
add_dependencies(mlcc_runtime_install mlcc_runtime_versioned mlcc_runtime_static)

set(mlcc_runtime_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mlcc_runtime)
set(mlcc_runtime_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH mlcc_config_to_prefix /${mlcc_runtime_config_dir} /)
file(RELATIVE_PATH mlcc_pc_to_prefix /${mlcc_runtime_pc_dir} /)
set(mlcc_runtime_generated ${CMAKE_BINARY_DIR}/generated/mlcc_runtime)
configure_file(${CMAKE_SOURCE_DIR}/cmake/mlcc_runtime-config.cmake.in ${mlcc_runtime_generated}/mlcc_runtime-config.cmake @ONLY)
configure_file(${CMAKE_SOURCE_DIR}/cmake/mlcc_runtime.pc.in ${mlcc_runtime_generated}/mlcc_runtime.pc @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${mlcc_runtime_generated}/mlcc_runtime-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
foreach(target mlcc_runtime_versioned mlcc_runtime_static)
  install(TARGETS ${target} COMPONENT runtime EXCLUDE_FROM_ALL
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
install(FILES ${mlcc_runtime_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES ${mlcc_runtime_generated}/mlcc_runtime-config.cmake ${mlcc_runtime_generated}/mlcc_runtime-config-version.cmake
        DESTINATION ${mlcc_runtime_config_dir} COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES ${mlcc_runtime_generated}/mlcc_runtime.pc DESTINATION ${mlcc_runtime_pc_dir} COMPONENT runtime EXCLUDE_FROM_ALL)
