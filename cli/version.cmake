cmake_minimum_required(VERSION 3.25)
# Writes OUTPUT, a header with what `weir --version` says, when that has changed.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "no commit known")
else()
  set(commit "commit ${commit}")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once
#define WEIR_VERSION \"@VERSION@\"
#define WEIR_COMMIT \"@commit@\"
#define WEIR_BUILD \"@BUILD@\"
" @ONLY)
