# Options of the build, and the flags that hold for every target of ours.
include(GNUInstallDirs)

option(ATTEND_SERVER "Build attend-server" ON)
option(ATTEND_CLIENT "Build the client library and the attend tool" ON)
option(ATTEND_TESTS "Build the tests" ON)
option(ATTEND_BENCHMARKS "Build the benchmarks" ON)
set(ATTEND_CUDA AUTO CACHE STRING "CUDA kernels: ON, OFF, or AUTO (where nvcc is found)")
set(ATTEND_SANITIZE "" CACHE STRING "Sanitizers, such as address,undefined or thread")
option(ATTEND_FUZZ "Build the fuzzers (needs clang; see tests/fuzz/run)" OFF)
option(ATTEND_WERROR "Warnings are errors" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(ATTEND_CCACHE ccache)
if(ATTEND_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ATTEND_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${ATTEND_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ATTEND_CCACHE})
endif()

find_package(Threads REQUIRED)

# Everything of ours links this: include root, warnings, sanitizers.
add_library(attend_base INTERFACE)
target_include_directories(attend_base INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                 $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
set(attend_warnings -Wall -Wextra)
if(ATTEND_WERROR)
  list(APPEND attend_warnings -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  list(APPEND attend_warnings -Wthread-safety)
endif()
target_compile_options(attend_base INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${attend_warnings}>")
if(ATTEND_SANITIZE)
  target_compile_options(attend_base INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${ATTEND_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(attend_base INTERFACE -fsanitize=${ATTEND_SANITIZE})
endif()

if(ATTEND_FUZZ)
  target_compile_options(attend_base INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>)
  # From 18 on clang names some templates otherwise than GCC, which built the distribution's Abseil.
  target_compile_options(attend_base INTERFACE
    $<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>)
endif()

configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${PROJECT_BINARY_DIR}/generated/attend_version.h @ONLY)
