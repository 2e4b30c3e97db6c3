#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <string>

#include "support.h"
#include "tests/support/numbers_of_ranks.h"

using namespace starling;
using nlohmann::json;
using test::Job;
using test::largest_difference;
using test::run_fake;
using Numbers = test::NumbersOfRanks;

TEST_CASE(
    "comm/families: the numbers of PyTorch's DistributedDataParallel with its hooks, and of "
    "decent-dp") {
  std::ifstream file("golden/algorithms.json");  // by golden/make_algorithms.py
  REQUIRE_MESSAGE(file.good(), "golden/algorithms.json is read from the folder tests/");
  const json golden = json::parse(file);
  REQUIRE(golden["cases"].size() >= 10);
  for (const json& expected : golden["cases"]) {
    const std::string name = expected["name"], type = expected["optimizer"]["type"];
    CAPTURE(name);
    CAPTURE(type);
    Job job;
    job.algorithm = expected["algorithm"];
    job.optimizer = expected["optimizer"];
    job.dtype = DType::kFloat64;
    job.steps = golden["steps"];
    job.lr = golden["lr"];
    const Numbers all = run_fake(job, static_cast<int>(expected["ranks"].size()));
    Numbers kept;  // every 13th number, and a sum that notices the others
    for (const auto& x : all) {
      kept.emplace_back();
      for (std::size_t e = 0; e < x.size(); e += 13) kept.back().push_back(x[e]);
      double sum = 0.0;
      for (std::size_t e = 0; e < x.size(); ++e) sum += x[e] * std::cos(static_cast<double>(e));
      kept.back().push_back(sum);
    }
    CHECK(largest_difference(kept, expected["ranks"].get<Numbers>()) < 1e-12);
  }
}
