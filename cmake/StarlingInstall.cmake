# Install rules and the exported package `starling`, usable from an install prefix and from the
# build folder.
include(CMakePackageConfigHelpers)
include(StarlingPlugin)

set(starling_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/starling)
set(starling_libraries starling_core starling_kernels starling_layers starling_topology starling_comm starling_pictures starling_text starling_inference starling_trainer)

install(TARGETS ${starling_libraries} EXPORT starlingTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(program train predict prepare doctor bench topo report)
  if(TARGET starling-${program})
    install(TARGETS starling-${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
# The public headers, and below detail/ what they include, which keeps its folders: "core/tensor.h"
# reads the same inside this tree and outside. Asked for at every installation, like the digest of
# these headers.
install(DIRECTORY apps/starling DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
set(detail "\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/starling/detail")
install(CODE "
  include(${PROJECT_SOURCE_DIR}/cmake/StarlingHeaders.cmake)
  starling_detail_headers(headers ${PROJECT_SOURCE_DIR})
  foreach(header \${headers})
    cmake_path(GET header PARENT_PATH folder)
    file(INSTALL ${PROJECT_SOURCE_DIR}/\${header} DESTINATION ${detail}/\${folder})
  endforeach()")
install(FILES ${PROJECT_BINARY_DIR}/apps/generated/starling_build.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/starling/detail)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/starling FILES_MATCHING PATTERN "*.json")

write_basic_package_version_file(${PROJECT_BINARY_DIR}/starlingConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/starlingConfig.cmake.in ${PROJECT_BINARY_DIR}/starlingConfig.cmake
                              INSTALL_DESTINATION ${starling_package_dir})
configure_file(cmake/StarlingPlugin.cmake ${PROJECT_BINARY_DIR}/StarlingPlugin.cmake COPYONLY)
configure_file(cmake/plugin_stamp.cpp ${PROJECT_BINARY_DIR}/plugin_stamp.cpp COPYONLY)
install(FILES ${PROJECT_BINARY_DIR}/starlingConfig.cmake ${PROJECT_BINARY_DIR}/starlingConfigVersion.cmake cmake/StarlingPlugin.cmake
              cmake/plugin_stamp.cpp
        DESTINATION ${starling_package_dir})
install(EXPORT starlingTargets NAMESPACE starling:: DESTINATION ${starling_package_dir})
export(EXPORT starlingTargets FILE ${PROJECT_BINARY_DIR}/starlingTargets.cmake NAMESPACE starling::)
