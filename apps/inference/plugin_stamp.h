#pragma once

#include <version>  // the standard library's macros

#include "starling_build.h"  // made by the build, and installed with the headers

// The stamp: what a file was compiled with, as a text. A program and the plug-ins that it opens
// have it in them. starling_add_plugin() compiles cmake/plugin_stamp.cpp into each; load_plugins()
// looks for it in the file, before any code of it runs.
//
// The first two lines must be alike. Classes, templates and inline functions of the public headers
// are compiled into both, so a digest of the headers, without their comments and spaces, stands for
// all that a plug-in takes for granted; a commit that changes other files refuses nothing. Of the
// standard library its kind and mode count: releases of one kind, and compilers, keep to one
// another's ABI. fmt and nlohmann_json have their version in their symbols, so that others do not
// link. The lines after these are for people.

#define STARLING_TEXT_OF(text) #text
#define STARLING_TEXT(text) STARLING_TEXT_OF(text)

#if defined(_LIBCPP_VERSION)
#define STARLING_STANDARD_LIBRARY "libc++ of ABI " STARLING_TEXT(_LIBCPP_ABI_VERSION)
#elif defined(_GLIBCXX_DEBUG)
#define STARLING_STANDARD_LIBRARY "libstdc++ in debug mode"
#elif _GLIBCXX_USE_CXX11_ABI
#define STARLING_STANDARD_LIBRARY "libstdc++"
#else
#define STARLING_STANDARD_LIBRARY "libstdc++ with the ABI of before C++11"
#endif
#if defined(__clang__)
#define STARLING_COMPILED_BY "Clang " __clang_version__
#else
#define STARLING_COMPILED_BY "GCC " __VERSION__
#endif

#define STARLING_STAMP_BEGIN "\x01starling: what this file was compiled with\n"
#define STARLING_STAMP                                                                         \
  STARLING_STAMP_BEGIN STARLING_INTERFACE "\n" STARLING_STANDARD_LIBRARY "\n" STARLING_VERSION \
                                          "\n" STARLING_COMMIT "\n" STARLING_COMPILED_BY "\n"
