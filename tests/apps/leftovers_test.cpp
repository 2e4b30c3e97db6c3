#include "apps/doctor/leftovers.h"

#include <doctest/doctest.h>
#include <utime.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/folder.h"

// What a dead job's MPI leaves, in folders that a test has made.
namespace starling {
namespace {

namespace fs = std::filesystem;

/// A file of 1000 bytes, an hour old where `old`.
void make(const std::string& path, bool old = true) {
  std::ofstream(path) << std::string(1000, 'x');
  const utimbuf times{0, std::time(nullptr) - 3600};
  if (old) REQUIRE(::utime(path.c_str(), &times) == 0);
}

TEST_CASE("apps/leftovers: only what no process uses, and what is old enough, goes") {
  const test::Folder folder;
  const LeftoverPlaces places{folder / "shm", folder / "tmp", folder / "proc", "a"};
  for (const char* name : {"shm", "tmp/ompi.a.0/pid.17", "tmp/ompi.a.0/pid.18",
                           "tmp/ompi.a.0/pid.7", "tmp/ompi.b.c.0/pid.16", "proc/18"})
    fs::create_directories(folder / name);
  const std::string used = places.shared_memory + "/vader_segment.a.0.1.0",
                    dead = places.shared_memory + "/vader_segment.a.0.2.0";
  const std::string young = places.shared_memory + "/sm_segment.a.0.3.0",
                    other = places.shared_memory + "/somebody_elses";
  for (const std::string& path : {used, dead, other}) make(path);
  make(young, false);
  const std::string elsewhere = places.shared_memory + "/vader_segment.b.c.0.4.0";
  make(elsewhere);
  make(folder / "tmp/ompi.a.0/pid.17/contact.txt");
  // 7 in its container
  std::ofstream(folder / "proc/18/status") << "Name:\tmpirun\nNSpid:\t18\t7\n";
  std::ofstream(folder / "proc/18/maps")
      << "7f00-7f01 rw-s 00000000 00:19 5                 " << used << "\n";
  for (const char* name : {"tmp/ompi.a.0/pid.17", "tmp/ompi.a.0/pid.18", "tmp/ompi.a.0/pid.7",
                           "tmp/ompi.b.c.0/pid.16"}) {
    const utimbuf times{0, std::time(nullptr) - 3600};
    REQUIRE(::utime((folder / name).c_str(), &times) == 0);
  }

  std::vector<Leftover> found = find_leftovers(places);
  REQUIRE(found.size() == 4);
  CHECK(found[0].path == dead);
  CHECK(found[0].bytes == 1000);
  CHECK(found[1].path == elsewhere);
  CHECK(found[1].kept == "it is of host or container b.c, and this is a");
  CHECK(found[2].path == places.temporary + "/ompi.a.0/pid.17");
  CHECK(found[2].bytes == 1000);
  CHECK(found[3].path == places.temporary + "/ompi.b.c.0/pid.16");
  CHECK(!found[3].kept.empty());
  CHECK(fs::exists(dead));
  remove_leftovers(found);
  CHECK(found[0].kept.empty());
  CHECK(!fs::exists(dead));
  CHECK(!fs::exists(found[2].path));
  for (const std::string& path :
       {used, young, other, elsewhere, found[3].path, places.temporary + "/ompi.a.0/pid.18",
        places.temporary + "/ompi.a.0/pid.7"})
    CHECK(fs::exists(path));
  CHECK(find_leftovers(places).size() == 2);
  CHECK(find_leftovers({folder / "none", folder / "none", folder / "none", "a"}).empty());
  CHECK(find_leftovers({places.shared_memory, places.temporary, places.processes, "b.c"})[0]
            .kept.empty());
}

}  // namespace
}  // namespace starling
