#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "../support.h"
#include "comm/exchange_plan.h"
#include "comm/shared/direct_transport.h"
#include "core/error.h"
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

TEST_CASE(
    "comm/mpi: ranks of one host that read each other's parameters get the bits of the fake "
    "transport") {
  register_builtin_topologies();
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = direct_transport();
  const int n = t->size();
  int types = 0;
  for (const std::string& type : topologies().names()) {
    Job job;
    job.topology = {{"type", type}};
    job.optimizer = {{"type", "adamw"}, {"weight_decay", 0.1}};
    job.start_apart = true;
    job.finish_every = 3;
    job.resume_after = 2;
    try {
      test::make_test_topology(job.topology, n);
    } catch (const Error&) {
      continue;  // this many ranks do not fit
    }
    CAPTURE(type);
    std::string way;
    const auto mine = test::run_job(job, *t, *backend, &way);
    CHECK(way == "direct");
    CHECK(mine == test::run_fake(job, n)[static_cast<std::size_t>(t->rank())]);
    ++types;
  }
  CHECK(types >= 4);
}

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

TEST_CASE("comm/mpi: rounds over nodes have the bits of the fake transport") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  if (t->size() % 2 != 0) return;
  for (const double bytes : {1.0, 600.0, 1e9}) {
    for (const char* inter : {"complete", "static-ring"}) {
      Job job;
      job.topology = {{"type", "hierarchical"},
                      {"ranks_per_node", 2},
                      {"inter", t->size() > 4 ? inter : "complete"}};
      job.start_apart = true;
      job.bucket_bytes = bytes;
      const auto expected = [&] {
        return test::run_fake(job, t->size())[static_cast<std::size_t>(t->rank())];
      };
      const auto full = expected();
      CHECK(test::run_job(job, *t, *backend) == full);
      job.exchange = "bf16";
      CHECK(test::run_job(job, *t, *backend) == expected());
      if (t->size() > 2) CHECK(expected() != full);
    }
  }
  if (t->size() == 4) {  // large, so that shards go in pieces; compared with the matrix
    const std::int64_t n = 2'000'000;
    Round round;
    round.ranks_per_node = 2;
    round.groups = {{{0, 1}, 0.75}};
    Tensor in(*backend, Shape{n}, DType::kFloat64), out(*backend, Shape{n}, DType::kFloat64);
    const auto number = [](int rank, std::int64_t i) {
      return static_cast<double>(rank * rank + 1) * static_cast<double>(i % 1000);
    };
    test::set_numbers(in, [&](std::int64_t i) { return number(t->rank(), i); });
    t->wait(t->start_exchange(plan_exchange(round, t->rank()), in, {out}, {0, 0, 0}));
    const double own = t->rank() < 2 ? 0.75 : 0.25;
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double expected =
          own * (number(0, i) + number(1, i)) / 2 + (1.0 - own) * (number(2, i) + number(3, i)) / 2;
      wrong += std::abs(out.data<double>()[i] - expected) > 1e-9;
    }
    CHECK(wrong == 0);
  }
}
