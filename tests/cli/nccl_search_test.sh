#!/usr/bin/env bash
# cmake/StarlingNccl.cmake on made-up folders.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cmake=${STARLING_CMAKE:-cmake}

printf '%s\n' 'cmake_minimum_required(VERSION 3.24)' 'set(CMAKE_FIND_LIBRARY_PREFIXES lib)' 'set(CMAKE_FIND_LIBRARY_SUFFIXES .so)' \
  'if(ALONE)' '  set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)' '  set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)' 'endif()' \
  "include($root/cmake/StarlingNccl.cmake)" 'starling_find_nccl(${HINTS})' >search.cmake
wheel=site-packages/nvidia/nccl
mkdir -p $wheel/include $wheel/lib
printf '#define NCCL_MAJOR 9\n#define NCCL_MINOR 41\n#define NCCL_PATCH 7\n' >$wheel/include/nccl.h

check "a header without a library is no NCCL" 0 "NCCL: not found \(.*nvidia-nccl-cu13" "$cmake" -DALONE=1 -DHINTS="$PWD/$wheel" -P search.cmake
touch $wheel/lib/libnccl.so.2
check "a wheel's folder, with its version" 0 "NCCL: 9\.41\.7, .*/$wheel/lib/libnccl\.so\.2" "$cmake" -DHINTS="$PWD/nowhere;$PWD/$wheel" -P search.cmake
mkdir -p other/include && sed 's/41/40/' $wheel/include/nccl.h >other/include/nccl.h
check "header and library come from one folder" 0 "NCCL: 9\.41\.7, .*/$wheel/lib" "$cmake" -DHINTS="$PWD/other;$PWD/$wheel" -P search.cmake
printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 17\n#define NCCL_PATCH 1\n' >old.h && mkdir -p old/include old/lib && mv old.h old/include/nccl.h && touch old/lib/libnccl.so.2
check "one without ncclCommSplit is not used" 0 "NCCL: 2\.17\.1, .*, not used: 2\.18 is needed" "$cmake" -DHINTS="$PWD/old" -P search.cmake
rm $wheel/include/nccl.h
check "a library without a header is no NCCL" 0 "NCCL: not found" "$cmake" -DALONE=1 -DHINTS="$PWD/$wheel" -P search.cmake
finish
