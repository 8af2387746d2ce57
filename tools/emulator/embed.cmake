# cmake -DOUT=<file.cpp> -DHEADERS=<file|file|...> -P embed.cmake: the headers, one after another, as cuda_host_text().
string(REPLACE "|" ";" HEADERS "${HEADERS}")
set(text "")
foreach(header ${HEADERS})
  file(READ ${header} part)
  string(REGEX REPLACE "#pragma once\n|#include \"[^\n]*\"\n" "" part "${part}")
  string(APPEND text "${part}\n")
endforeach()
file(WRITE ${OUT}.new
  "#include \"compile.h\"\n\nstd::string_view mlcc_emulator::cuda_host_text() {\n  return R\"mlcc(${text})mlcc\";\n}\n")
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
