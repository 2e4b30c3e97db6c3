#include <doctest/doctest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "../support.h"
#include "comm/shared/direct_transport.h"
#include "kernels/open_backend.h"
#include "world.h"

using namespace starling;
using test::Job;
using test::session;

namespace {

std::unique_ptr<Transport> direct_transport() {
  return make_direct_transport(session().make_transport(20.0), {20.0, false});
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:starling") != std::string::npos;
  return count;
}

}  // namespace

TEST_CASE("comm/mpi: sharing memory leaves no descriptor and no mapping behind") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  t->world().barrier();
  const auto descriptors = open_descriptors();
  CHECK(shared_mappings() == 0);
  {
    test::TinyModel model({Shape{1000}});
    const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1);
    std::vector<Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, 0, false);
    const auto direct = direct_transport();
    const auto mixer = direct->make_mixer(*backend);
    mixer->share(buckets);
    CHECK(mixer->name() == "direct");
    CHECK(shared_mappings() == t->size());
    CHECK(open_descriptors() == descriptors);
    model.parameters.clear();
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(shared_mappings() == 0);
}

TEST_CASE(
    "comm/mpi: where one rank may not make shared memory, all ranks exchange by messages, to the "
    "same bits") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  Job job;
  job.start_apart = true;
  job.topology = {{"type", "complete"}};
  const auto t = direct_transport();
  const bool last = t->rank() == t->size() - 1;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1024;
  if (last) setrlimit(RLIMIT_FSIZE, &small);
  std::string way;
  const auto mine = test::run_job(job, *t, *backend, &way);
  if (last) setrlimit(RLIMIT_FSIZE, &before);
  CHECK(way == "mpi");
  CHECK(mine == test::run_fake(job, t->size())[static_cast<std::size_t>(t->rank())]);
}
