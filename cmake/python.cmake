# The Python that runs our scripts and, with MLCC_WITH_PYTHON, the one that mlcc._C is built for.

if(NOT DEFINED Python_EXECUTABLE AND EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${CMAKE_SOURCE_DIR}/.venv/bin/python)
endif()
if(NOT MLCC_WITH_PYTHON)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  return()
endif()
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

# `import torch` takes a second, and a new source file makes CMake configure again: ask once per torch.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); p = s.submodule_search_locations[0] if s else ''; print(p, os.stat(p + '/version.py').st_mtime_ns if p else '', sep=';')"
  OUTPUT_VARIABLE mlcc_torch_key OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET mlcc_torch_key 0 mlcc_torch_dir)
if(NOT mlcc_torch_dir)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no torch; install it, or pass -DMLCC_WITH_PYTHON=OFF")
endif()
if(NOT "${mlcc_torch_key}" STREQUAL "${MLCC_TORCH_KEY}")
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.__version__.split('+')[0], int(torch.compiled_with_cxx11_abi()), sep=';')"
    OUTPUT_VARIABLE mlcc_torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(MLCC_TORCH_FACTS "${mlcc_torch_facts}" CACHE INTERNAL "version and C++ ABI of torch")
  set(MLCC_TORCH_KEY "${mlcc_torch_key}" CACHE INTERNAL "what MLCC_TORCH_FACTS was read from")
endif()
list(GET MLCC_TORCH_FACTS 0 mlcc_torch_version)
list(GET MLCC_TORCH_FACTS 1 mlcc_torch_cxx11_abi)
message(STATUS "torch ${mlcc_torch_version}: ${mlcc_torch_dir}")

execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE mlcc_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE mlcc_git_result)
if(NOT mlcc_git_result EQUAL 0)
  set(mlcc_commit "")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/_build_info.py.in ${mlcc_package_dir}/_build_info.py @ONLY)
