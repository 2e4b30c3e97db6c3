#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/forwarding_backend.h"
#include "kernels/cuda/device/column_tiles.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/fakes/cuda/shim.h"
#include "tests/operations/rows.h"

// Kernels whose last block, or each block of the next kernel, combines what all have left:
// whichever block is last, the bits are the same, and the counters are 0 again.
namespace starling::tests {
namespace {

using cuda::shim::Order;

struct OrderBack {
  ~OrderBack() {
    cuda::shim::set_order(Order::kForward);
    cuda::shim::set_resident_blocks(2);
  }
};

constexpr Index kRows = 1500, kChannels = 80;

/// Rows whose operations leave partial results, on inputs that have several parts.
const std::vector<Operation>& combining() {
  static const std::vector<Operation> rows{
      batch_norm(kRows, kChannels, {.relu = true, .mask = MaskFrom::kInput}),
      batch_norm_statistics(kRows, kChannels),
      batch_norm_backward_sums(kRows, kChannels),
      batch_norm_backward_apply(kRows, kChannels, true),
      layer_norm(kRows, kChannels),
      sums_of_rows(kRows, kChannels),
      squared_distance(kRows * kChannels * 3, true),
      cross_entropy(kRows, kChannels, 0.0)};
  return rows;
}
Results run_random(const Operation& op, Backend& backend, DType dtype) {
  return run(op, backend, dtype, random_inputs(op, dtype), random_seed(op, dtype));
}

/// The launches of each operation.
class Launches final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::vector<std::pair<std::string, int>> of;

 private:
  void around(std::string_view name, const std::function<void()>& operation) override {
    of.emplace_back(name, cuda::shim::launches(cuda::shim::recorded(operation), ""));
  }
};

bool all_zero(const unsigned* counters) {
  return std::all_of(counters, counters + cuda::CudaBackend::kArrivals,
                     [](unsigned n) { return n == 0; });
}

}  // namespace

TEST_CASE("cuda/last block: operations that combine have the same bits whichever block is last") {
  const OrderBack back;
  for (const Operation& op : combining()) {
    CAPTURE(op.name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      CAPTURE(name_of(dtype));
      cuda::shim::set_order(Order::kForward);
      const Results first = run_random(op, gpu(), dtype);
      for (std::uint64_t seed = 1; seed < 6; ++seed) {
        CAPTURE(seed);
        cuda::shim::set_order(seed == 1 ? Order::kBackward : Order::kShuffled, seed);
        const Results found = run_random(op, gpu(), dtype);
        CHECK(found.outputs == first.outputs);
        CHECK(found.gradients == first.gradients);
        CHECK(all_zero(gpu().arrivals()));
      }
    }
  }
}

TEST_CASE("cuda/last block: however many blocks a multiprocessor holds, the results agree") {
  const OrderBack back;
  for (const Operation& op : combining()) {
    const Results two = run_random(op, gpu(), DType::kFloat32);
    for (const int blocks : {1, 3, 8}) {
      CAPTURE(blocks);
      cuda::shim::set_resident_blocks(blocks);
      CHECK(difference(op, DType::kFloat32, run_random(op, gpu(), DType::kFloat32), two) == "");
    }
    cuda::shim::set_resident_blocks(2);
  }
}

TEST_CASE(
    "cuda/last block: what a block combines is at most a quarter as much as its share of the "
    "matrix, and blocks are as many as that allows") {
  constexpr Index kBlocks = 132;
  for (const Index rows : {1, 7, 100, 8192, 32768, 131072, 3211264}) {
    for (const Index channels : {1, 3, 16, 64, 512, 4500}) {
      for (const int group : {1, 4, 8}) {
        if (channels % group != 0) continue;
        CAPTURE(rows);
        CAPTURE(channels);
        CAPTURE(group);
        const cuda::ColumnTiles t =
            cuda::column_tiles(rows, channels, group, kBlocks, cuda::CudaBackend::kArrivals);
        CHECK(Index{t.parts} * t.part_rows >= rows);
        CHECK((Index{t.parts} - 1) * t.part_rows < rows);
        CHECK(Index{t.tiles} * t.width * group >= channels);
        if (t.parts > 1) {
          CHECK(Index{2} * t.parts * t.parts * 4 <= rows);
          CHECK(Index{t.parts} * t.tiles <= kBlocks);
        }
        if (rows == 131072 && channels >= 16 && channels <= 512 && group > 1)
          CHECK(Index{t.parts} * t.tiles >= 120);
      }
    }
  }
}

TEST_CASE("cuda/last block: streams and captures have counters of their own") {
  std::set<unsigned*> all;
  for (const StreamKind kind : kStreams) {
    const StreamScope scope(gpu(), kind);
    CHECK(all.insert(gpu().arrivals()).second);
    CHECK(all_zero(gpu().arrivals()));
  }
  REQUIRE(gpu().begin_capture({}));
  const bool apart = all.insert(gpu().arrivals()).second, zero = all_zero(gpu().arrivals());
  gpu().abandon_capture();
  CHECK(apart);
  CHECK(zero);
}

TEST_CASE("cuda/last block: operations that combine launch no more than they must") {
  for (const Operation& op : combining()) {
    Launches recorder(gpu());
    run_random(op, recorder, DType::kFloat32);
    CHECK(!recorder.of.empty());
    for (const auto& [name, launches] : recorder.of) {
      CAPTURE(name);
      const bool one = op.name.find("first step") != std::string::npos ||
                       op.name.find("second step") != std::string::npos ||
                       op.name.find("statistics alone") != std::string::npos;
      const bool two = !one && (name == "batch_norm_forward" || name.ends_with("norm_backward"));
      CHECK(launches == (two ? 2 : 1));
    }
  }
}

}  // namespace starling::tests
