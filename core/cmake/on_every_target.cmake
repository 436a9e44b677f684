# Run PROGRAM (with ARGUMENTS, and under EMULATOR, if there are such) on each SIMD target. It exits with 77 for a target
# that this machine lacks, and must print the same on all others: the library chooses its target when it is loaded, so
# each needs a process.
foreach(target IN ITEMS scalar avx2 avx512 neon)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env "TENSORWIRE_CPU=${target}" ${EMULATOR} "${PROGRAM}" ${ARGUMENTS}
    OUTPUT_VARIABLE printed RESULT_VARIABLE code)
  if(code EQUAL 77)
    continue()
  endif()
  message(STATUS "${target}: ${printed}")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${target}: exit status ${code}")
  endif()
  if(NOT DEFINED expected)
    set(expected "${printed}")
  elseif(NOT printed STREQUAL expected)
    message(FATAL_ERROR "${target} prints something else than scalar")
  endif()
endforeach()
