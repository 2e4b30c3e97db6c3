#!/usr/bin/env bash
# scripts/mutate on a tree of one source: what is tested is killed, what is not survives, also an
# endless loop ends, and a test that fails anyway kills nothing.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
mkdir -p toy/scripts toy/core
cp "$root/scripts/mutate" toy/scripts/
cat >toy/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(toy LANGUAGES CXX)
enable_testing()
add_library(toy SHARED core/toy.cpp)
add_executable(test_core test.cpp)
target_link_libraries(test_core toy)
add_test(NAME core COMMAND test_core)
add_test(NAME broken COMMAND false)
END
cat >toy/core/toy.cpp <<'END'
int tested(int x) { return x - 3; }    // 3 - 3
int untested(int x) { return x - 3; }  /* 3 - 3 */
constexpr int unused = '1' / 1;
void count_down(volatile unsigned long& left) { while (left > 0) left -= 1; }
const char* text() { return "1 < 2"; }
END
cat >toy/test.cpp <<'END'
int tested(int), untested(int);
void count_down(volatile unsigned long&);
int main() {
  volatile unsigned long left = 7;
  count_down(left);
  return tested(7) != 4 || left != 0;
}
END
cp toy/core/toy.cpp before.cpp
verdicts() { python3 -c 'import json, sys
found = {}
for line in map(json.loads, open("results")):
    found[line["id"]] = (line["line"], line["verdict"])
print(*(f"{place}:{verdict.replace(chr(32), chr(95))}" for place, verdict in sorted(found.values())))'; }
export -f verdicts
mutate() { toy/scripts/mutate --results results --patience 1 "$@"; }
export -f mutate
check "a first part" 0 "core/toy.cpp" mutate --count 4
check "a test that fails anyway" 0 "broken does not pass on the unchanged tree" mutate --count 10
check "all there are" 2 "no new mutant" mutate --count 9
check "each verdict" 0 "^1:killed_by_core 1:killed_by_core 1:killed_by_core 2:survived 2:survived 2:survived 3:does_not_compile 3:no_change 3:no_change\
 4:killed_by_core 4:killed_by_core_.time. 4:killed_by_core_.time. 4:killed_by_core_.time. 4:killed_by_core_.time.$" verdicts
check "the table" 0 "core +14 +8 +3 +0 +2 +1 +72.7 %" mutate --summary
verify "the tree as it was" cmp before.cpp toy/core/toy.cpp
verify "no process is left" bash -c "! ls -l /proc/[0-9]*/exe 2>/dev/null | grep toy/build-mutate"
survivor=$(sed -n 's/^{"id": "\([0-9-]*\)".*"survived".*/\1/p' results | head -1)
check "one mutant" 0 "^[+]int untested" mutate --show "$survivor"
verify "one of no consequence" mutate --equivalent "$survivor" "nobody calls it"
sed -i 's/return/return untested(7) != 4 ||/' toy/test.cpp
check "after a test was added" 0 "killed by core" mutate --only survived
check "the table then" 0 "core +14 +10 +0 +1 +2 +1 +100.0 %" mutate --summary
check "an unknown one" 2 "has no mutant 3-1" mutate --only 3-1
finish
