# What an installed Starling has beside programs, libraries and headers: documentation, manual pages
# and completion (both made of the programs' own --help, at installation), a pkg-config file; and
# packages of all that: `cpack -G DEB` for Debian and Ubuntu (scripts/package.sh).
set(starling_programs train predict prepare doctor bench topo report)
install(FILES README.md CHANGELOG.md LICENSE CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
if(NOT CMAKE_CROSSCOMPILING)
  list(TRANSFORM starling_programs PREPEND "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/starling-" OUTPUT_VARIABLE programs)
  install(CODE "
    set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    function(make_text path)  # COMMAND...
      cmake_path(GET path PARENT_PATH folder)
      file(MAKE_DIRECTORY \${folder})
      execute_process(COMMAND \${ARGN} OUTPUT_FILE \${path} COMMAND_ERROR_IS_FATAL ANY)
    endfunction()
    foreach(program ${programs})
      cmake_path(GET program FILENAME name)
      make_text(\${share}/man/man1/\${name}.1 ${PROJECT_SOURCE_DIR}/scripts/man_page.sh \${program})
      set(completion ${PROJECT_SOURCE_DIR}/scripts/completion.sh)
      make_text(\${share}/bash-completion/completions/\${name} \${completion} bash \${program})
      make_text(\${share}/zsh/site-functions/_\${name} \${completion} zsh \${program})
      make_text(\${share}/fish/vendor_completions.d/\${name}.fish \${completion} fish \${program})
    endforeach()")
endif()

# Found from where the file lies: `cmake --install --prefix` may take it anywhere.
file(RELATIVE_PATH starling_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" starling_prefix ${starling_prefix})
file(RELATIVE_PATH starling_includes ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/starling.pc @ONLY CONTENT
"prefix=\${pcfiledir}/@starling_prefix@
libdir=\${pcfiledir}/..
includedir=\${prefix}/@starling_includes@

Name: starling
Description: @PROJECT_DESCRIPTION@: models in programs of one's own
Version: @PROJECT_VERSION@
Requires: fmt, spdlog
Libs: -L\${libdir} -lstarling_inference -lstarling_layers -lstarling_kernels -lstarling_core
Cflags: -I\${includedir} -I\${includedir}/starling/detail
")
install(FILES ${PROJECT_BINARY_DIR}/starling.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(CPACK_PACKAGE_VENDOR "Starling")
set(CPACK_PACKAGE_CONTACT "The Starling authors <starling@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "decentralized training of neural networks over MPI")
set(CPACK_PACKAGE_DESCRIPTION "Trains neural networks on many processes at once, without a global
all-reduce: each rank averages its parameters with a few neighbours while
it computes the next step.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "dataset-fashion-mnist")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, libopenmpi-dev, libfmt-dev, libspdlog-dev, nlohmann-json3-dev")
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/StarlingDebian.cmake)
include(CPack)
