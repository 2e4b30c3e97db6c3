#include "apps/bench/kernels.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/statistics.h"
#include "core/backend.h"
#include "kernels/optimizer.h"

namespace starling {

namespace {

/// One row: an operation, what it must move or compute, and how to run it.
struct Row {
  std::string name;
  double bytes = 0.0;  ///< > 0: bound by memory
  double flops = 0.0;  ///< > 0: bound by arithmetic
  std::function<void()> run;
};

class Bench {
 public:
  explicit Bench(Backend& backend) : backend_(backend) {}

  Tensor tensor(const Shape& shape) {
    Tensor t(backend_, shape, DType::kFloat32);
    float* data = t.data<float>();
    for (std::int64_t i = 0; i < t.elements(); ++i) data[i] = 0.01f * static_cast<float>(i % 97) - 0.5f;
    return t;
  }

  void convolution(std::int64_t size, std::int64_t in, std::int64_t out) {
    const Window2d window{{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1};
    const Tensor x = tensor({kBatch, size, size, in}), w = tensor({out, 3, 3, in}), y = tensor({kBatch, size, size, out});
    const std::string shape = fmt::format("{}x{}x{} → {}", size, size, in, out);
    const double flops = 2.0 * 9.0 * static_cast<double>(kBatch * size * size * in * out);
    rows.push_back(
        {"conv2d_forward " + shape, 0, flops, [=, this] { backend_.conv2d_forward({.x = x, .weight = w, .y = y, .window = window}); }});
    rows.push_back({"conv2d_backward_data " + shape, 0, flops,
                    [=, this] { backend_.conv2d_backward_data({.dy = y, .weight = w, .dx = x, .window = window}); }});
    rows.push_back({"conv2d_backward_weights " + shape, 0, flops,
                    [=, this] { backend_.conv2d_backward_weights({.x = x, .dy = y, .dweight = w, .window = window}); }});
  }

  void batch_norm(std::int64_t size, std::int64_t channels) {
    const Shape shape{kBatch, size, size, channels};
    const Tensor x = tensor(shape), y = tensor(shape), r = tensor(shape), dx = tensor(shape), dr = tensor(shape), dy = tensor(shape);
    const Tensor gamma = tensor({channels}), beta = tensor({channels}), mean = tensor({channels}), inv = tensor({channels});
    const Tensor rm = tensor({channels}), rv = tensor({channels}), dg = tensor({channels}), db = tensor({channels});
    const double bytes = static_cast<double>(x.bytes());
    const std::string text = fmt::format("{}x{}x{}", size, size, channels);
    // Forward reads x twice (statistics, then normalise) and writes y; backward reads x, y and dy, then x and dy again, and writes dx.
    rows.push_back({"batch_norm+relu forward " + text, 3 * bytes, 0, [=, this] {
                      backend_.batch_norm_forward({.x = x,
                                                   .gamma = gamma,
                                                   .beta = beta,
                                                   .y = y,
                                                   .running_mean = rm,
                                                   .running_var = rv,
                                                   .saved_mean = mean,
                                                   .saved_inv_std = inv,
                                                   .relu = true});
                    }});
    rows.push_back({"batch_norm+add+relu forward " + text, 4 * bytes, 0, [=, this] {
                      backend_.batch_norm_forward({.x = x,
                                                   .residual = r,
                                                   .gamma = gamma,
                                                   .beta = beta,
                                                   .y = y,
                                                   .running_mean = rm,
                                                   .running_var = rv,
                                                   .saved_mean = mean,
                                                   .saved_inv_std = inv,
                                                   .relu = true});
                    }});
    rows.push_back({"batch_norm+relu backward " + text, 7 * bytes, 0, [=, this] {
                      backend_.batch_norm_backward({.x = x,
                                                    .y = y,
                                                    .dy = dy,
                                                    .gamma = gamma,
                                                    .saved_mean = mean,
                                                    .saved_inv_std = inv,
                                                    .dx = dx,
                                                    .dgamma = dg,
                                                    .dbeta = db,
                                                    .relu = true});
                    }});
    rows.push_back({"batch_norm+add+relu backward " + text, 8 * bytes, 0, [=, this] {
                      backend_.batch_norm_backward({.x = x,
                                                    .y = y,
                                                    .dy = dy,
                                                    .dy2 = r,
                                                    .gamma = gamma,
                                                    .saved_mean = mean,
                                                    .saved_inv_std = inv,
                                                    .dx = dx,
                                                    .dresidual = dr,
                                                    .dgamma = dg,
                                                    .dbeta = db,
                                                    .relu = true});
                    }});
  }

  void others() {
    const Shape shape{kBatch, 32, 32, 16};
    const Tensor a = tensor(shape), b = tensor(shape), c = tensor(shape), pooled = tensor({kBatch, 16});
    const double bytes = static_cast<double>(a.bytes());
    rows.push_back({"relu forward 32x32x16", 2 * bytes, 0, [=, this] { backend_.activation_forward({Activation::kRelu, a, c}); }});
    rows.push_back({"gelu forward 32x32x16", 2 * bytes, 0, [=, this] { backend_.activation_forward({Activation::kGelu, a, c}); }});
    rows.push_back({"add 32x32x16", 3 * bytes, 0, [=, this] { backend_.add({a, b, c}); }});
    rows.push_back({"global_avg_pool 32x32x16", bytes, 0, [=, this] { backend_.global_avg_pool_forward({a, pooled}); }});
    const Tensor x = tensor({64, 3072}), w = tensor({512, 3072}), y = tensor({64, 512});
    const double flops = 2.0 * 64 * 3072 * 512;
    rows.push_back(
        {"linear forward 64x3072 → 512", 0, flops, [=, this] { backend_.matmul({.a = x, .b = w, .c = y, .transpose_b = true}); }});
    rows.push_back({"linear backward weights", 0, flops, [=, this] { backend_.matmul({.a = y, .b = x, .c = w, .transpose_a = true}); }});
    const Tensor m = tensor({1024, 1024}), n = tensor({1024, 1024}), k = tensor({1024, 1024});
    rows.push_back({"matmul 1024x1024x1024", 0, 2.0 * 1024 * 1024 * 1024, [=, this] { backend_.matmul({.a = m, .b = n, .c = k}); }});
  }

  static constexpr std::int64_t kBatch = 128;
  std::vector<Row> rows;

 private:
  Backend& backend_;
};

}  // namespace

int bench_kernels(int threads, int repeats, bool json) {
  const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, threads);
  Bench bench(*backend);
  bench.convolution(32, 16, 16);
  bench.convolution(16, 32, 32);
  bench.convolution(8, 64, 64);
  bench.batch_norm(32, 16);
  bench.batch_norm(16, 32);
  bench.batch_norm(8, 64);
  bench.others();

  const Tensor from = bench.tensor({Bench::kBatch, 32, 32, 16}), to = bench.tensor({Bench::kBatch, 32, 32, 16});
  const auto copy = [&] { backend->copy(from, to); };
  std::vector<std::vector<double>> seconds(bench.rows.size());
  std::vector<double> copy_seconds;
  copy();
  for (const Row& row : bench.rows) row.run();
  for (int i = 0; i < repeats; ++i) {
    for (std::size_t r = 0; r < bench.rows.size(); ++r) seconds[r].push_back(seconds_of(bench.rows[r].run));
    copy_seconds.push_back(seconds_of(copy));
  }
  const double copy_bytes_per_second = 2.0 * static_cast<double>(from.bytes()) / median(copy_seconds);
  double peak = 0.0;
  for (std::size_t r = 0; r < bench.rows.size(); ++r) peak = std::max(peak, bench.rows[r].flops / median(seconds[r]));

  nlohmann::json result{
      {"device", backend->description()}, {"copy_gb_per_second", copy_bytes_per_second / 1e9}, {"peak_gflops", peak / 1e9}};
  if (!json) {
    fmt::print("{}, {} thread{}; copy {:.1f} GB/s, fastest product {:.0f} GFLOP/s\n", backend->description(), threads,
               threads == 1 ? "" : "s", copy_bytes_per_second / 1e9, peak / 1e9);
  }
  for (std::size_t r = 0; r < bench.rows.size(); ++r) {
    const Row& row = bench.rows[r];
    const double time = median(seconds[r]);
    const double rate = row.bytes > 0 ? row.bytes / time : row.flops / time;
    const double ratio = rate / (row.bytes > 0 ? copy_bytes_per_second : peak);
    result["rows"].push_back({{"operation", row.name},
                              {"ms", 1e3 * time},
                              {"rate", rate / 1e9},
                              {"unit", row.bytes > 0 ? "GB/s" : "GFLOP/s"},
                              {"ratio", ratio}});
    if (!json)
      fmt::print("  {:<42} {:8.3f} ms {:8.1f} {:<8} {:5.2f} of the limit\n", row.name, 1e3 * time, rate / 1e9,
                 row.bytes > 0 ? "GB/s" : "GFLOP/s", ratio);
  }
  if (json) fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace starling
