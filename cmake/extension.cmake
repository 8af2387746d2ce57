# mlcc/_C: pybind11 and libtorch. Links three names instead of using find_package(Torch), which brings
# Caffe2's flags; not `torch`, which under a CUDA build pulls in libtorch_cuda.

file(GLOB_RECURSE mlcc_python_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/*.cpp)
if(NOT mlcc_python_sources)
  message(STATUS "csrc/python has no sources yet: no mlcc._C")
  return()
endif()

Python_add_library(_C MODULE WITH_SOABI ${mlcc_python_sources})
# pybind11 is the one that torch brings: two versions in one process do not share their types.
target_include_directories(_C SYSTEM PRIVATE
  ${mlcc_torch_dir}/include ${mlcc_torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(_C PRIVATE
  _GLIBCXX_USE_CXX11_ABI=${mlcc_torch_cxx11_abi}
  MLCC_TORCH_VERSION="${mlcc_torch_version}"
  TORCH_EXTENSION_NAME=_C)
target_link_directories(_C PRIVATE ${mlcc_torch_dir}/lib)
target_link_libraries(_C PRIVATE mlcc_core mlcc_warnings torch_python torch_cpu c10)
# A false alarm of g++ 12 about the reference counts in c10/util/intrusive_ptr.h.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(_C PRIVATE -Wno-stringop-overflow)
endif()
set(mlcc_python_map ${CMAKE_SOURCE_DIR}/cmake/_C.map)
target_link_options(_C PRIVATE -Wl,--version-script=${mlcc_python_map} -Wl,--gc-sections -Wl,--as-needed)
set_target_properties(_C PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${mlcc_package_dir}
  LINK_DEPENDS ${mlcc_python_map}
  BUILD_RPATH ${mlcc_torch_dir}/lib
  INSTALL_RPATH "$ORIGIN/../torch/lib")
install(TARGETS _C LIBRARY DESTINATION mlcc)
install(FILES ${mlcc_package_dir}/_build_info.py DESTINATION mlcc)
