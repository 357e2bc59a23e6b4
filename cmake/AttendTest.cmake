# attend_test(NAME SOURCES ... LIBS ... [LABELS ...] [TIMEOUT seconds] [ARGS ...] [ENV NAME=value ...])
# A GoogleTest program that is one CTest test. Its working directory is the source root.
function(attend_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS;LABELS;ARGS;ENV" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE attend_base ${arg_LIBS} GTest::gmock GTest::gtest_main
    $<TARGET_NAME_IF_EXISTS:attend_tsan>)
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  attend_test_properties(${name} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS} ENV ${arg_ENV})
endfunction()

# attend_script_test(NAME COMMAND ... [LABELS ...] [TIMEOUT seconds] [ENV ...]): any command; exit code 77
# means skipped.
function(attend_script_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "COMMAND;LABELS;ENV" ${ARGN})
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  attend_test_properties(${name} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS} ENV ${arg_ENV})
endfunction()

function(attend_test_properties name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LABELS;ENV" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(ATTEND_SANITIZE)
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")  # sanitizers slow programs down
  endif()
  if(ATTEND_SANITIZE MATCHES "address")
    list(APPEND arg_ENV LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/sanitizers/leaks.txt:print_suppressions=0)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
    SKIP_REGULAR_EXPRESSION "ATTEND-SKIPPED:" LABELS "${arg_LABELS}" ENVIRONMENT "${arg_ENV}")
endfunction()
