#include "core/host.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "tests/support/folder.h"

using namespace starling;

TEST_CASE(
    "core/host: a CPU quota is the least of a process's groups and those above them, in both "
    "versions") {
  const test::Folder folder;
  const auto group = [&](const std::string& path, const std::string& file,
                         const std::string& text) {
    std::filesystem::create_directories(folder / path);
    folder.write(path + "/" + file, text);
  };
  group("two/a/b", "cpu.max", "max 100000\n");
  group("two/a", "cpu.max", "250000 100000\n");
  group("two/a/b/c", "cpu.max", "50000 20000\n");
  group("two/low", "cpu.max", "1000 100000\n");
  group("two/odd", "cpu.max", "nonsense\n");
  group("two/none", "cpu.max", "0 100000\n");
  group("container", "cpu.max", "150000 100000\n");
  const auto first_version = [&](const std::string& path, const std::string& quota) {
    group(path, "cpu.cfs_quota_us", quota);
    group(path, "cpu.cfs_period_us", "100000\n");
  };
  first_version("one/cpu,cpuacct/job", "300000\n");
  first_version("one/cpu,cpuacct/free", "-1\n");
  first_version("one/cpu/short", "70000\n");
  const auto quota = [&](const std::string& groups, const std::string& root) {
    return cpu_quota(groups, folder / root);
  };
  CHECK(quota("0::/a/b\n", "two") == 2.5);
  CHECK(quota("0::/a/b/c\n", "two") == 2.5);
  CHECK(quota("0::/low\n", "two") == 0.01);
  CHECK(std::isinf(quota("0::/odd\n", "two")));
  CHECK(std::isinf(quota("0::/none\n", "two")));
  CHECK(std::isinf(quota("0::/\n", "two")));
  CHECK(quota("0::/docker/0123/not/mounted\n", "container") == 1.5);
  CHECK(quota("12:pids:/job\n4:cpu,cpuacct:/job\n0::/\n", "one") == 3.0);
  CHECK(std::isinf(quota("4:cpu,cpuacct:/free\n", "one")));
  CHECK(quota("4:cpu:/short\n", "one") == 0.7);
  CHECK(std::isinf(quota("4:cpuset:/short\n", "one")));
  CHECK(std::isinf(quota("", "one")));
  CHECK(usable_cores() >= 1);
  CHECK(cores_of_rank(1000) >= 0);
}

TEST_CASE(
    "core/host: free memory is the least that a process's groups leave, in both versions; pages of "
    "files that nobody uses are free") {
  const test::Folder folder;
  const auto group = [&](const std::string& path, const std::string& file,
                         const std::string& text) {
    std::filesystem::create_directories(folder / path);
    folder.write(path + "/" + file, text);
  };
  group("two/job", "memory.max", "1000\n");
  group("two/job", "memory.current", "700\n");
  group("two/job", "memory.stat", "anon 400\nfile 300\ninactive_file 200\nactive_file 100\n");
  group("two/job/step", "memory.max", "max\n");
  group("two/job/step", "memory.current", "600\n");
  group("two/full", "memory.max", "1000\n");
  group("two/full", "memory.current", "1200\n");
  group("one/memory/job", "memory.limit_in_bytes", "5000\n");
  group("one/memory/job", "memory.usage_in_bytes", "4000\n");
  group("one/memory/job", "memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n");
  const auto free = [&](const std::string& groups, const std::string& root) {
    return available_in_groups(groups, folder / root);
  };
  CHECK(free("0::/job/step\n", "two") == 500);
  CHECK(free("0::/full\n", "two") == 0);
  CHECK(std::isinf(free("0::/\n", "two")));
  CHECK(free("3:cpuset:/job\n4:memory:/job\n0::/\n", "one") == 2500);
  CHECK(std::isinf(free("4:cpu:/job\n", "one")));
  CHECK(available_bytes() > 0);
}
