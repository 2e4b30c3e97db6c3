#include "apps/bench/benches.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/support.h"
#include "apps/training/device/device.h"
#include "core/backend.h"
#include "core/console.h"
#include "core/operations/pointwise.h"
#include "kernels/open_backend.h"
#include "tests/operations/operation_table.h"

namespace starling {

namespace {

using tests::Operation;

/// One pass of an operation: the work and the rate.
struct Row {
  std::string name;
  double bytes = 0.0;  ///< > 0: memory-bound
  double flops = 0.0;  ///< > 0: bound by arithmetic
  double seconds = 0.0;
  double copy_rate = 0.0;  ///< bytes/s of the copies measured in between
};

class KernelBench {
 public:
  KernelBench(Backend& backend, DType dtype, std::int64_t batch, int repeats)
      : backend_(backend),
        dtype_(dtype),
        repeats_(repeats),
        from_(tensor({batch, 32, 32, 16}, dtype)),
        to_(tensor({batch, 32, 32, 16}, dtype)) {}

  void time(const Operation& op) {
    std::vector<Tensor> in, out, saved, gradients;
    // Inputs with constraints are drawn; for all others a pattern is sufficient.
    const bool drawn =
        op.fit || std::any_of(op.input_roles.begin(), op.input_roles.end(), tests::is_integer);
    const std::vector<tests::Numbers> numbers =
        drawn ? tests::random_inputs(op, dtype_) : std::vector<tests::Numbers>{};
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const DType type = op.input_dtype(i, dtype_);
      in.push_back(drawn ? tests::to_tensor(backend_, numbers[i], op.inputs[i], type)
                         : tensor(op.inputs[i], type));
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i)
      out.push_back(tensor(op.outputs[i], op.output_dtype(i, dtype_)));
    const auto forward = [&] { op.forward(backend_, in, out, saved); };
    forward();
    const tests::PassWork work = tests::work_of(op, dtype_);
    time(row(op.name + ", forward", work.forward), forward);
    if (!op.backward) return;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      gradients.push_back(op.differentiable(i) ? tensor(op.inputs[i], op.gradient_dtype(i, dtype_))
                                               : Tensor());
    }
    const Tensor dy = tensor(op.outputs[0], op.output_dtype(0, dtype_));
    time(row(op.name + ", backward", work.backward),
         [&] { op.backward(backend_, in, out, saved, dy, gradients); });
  }

  std::vector<Row> rows;

 private:
  /// Products are bound by arithmetic, all others by memory.
  static Row row(std::string name, const tests::Work& work) {
    return {
        .name = std::move(name), .bytes = work.flops > 0.0 ? 0.0 : work.bytes, .flops = work.flops};
  }
  Tensor tensor(const Shape& shape, DType dtype) const { return patterned(backend_, shape, dtype); }

  void time(Row row, const std::function<void()>& work) {
    Timing copy(backend_, [this] { backend_.copy(from_, to_); }), own(backend_, work);
    for (int i = 0; i < repeats_; ++i) {
      copy.add();
      own.add();
    }
    row.seconds = own.seconds();
    row.copy_rate = 2.0 * static_cast<double>(from_.bytes()) / copy.seconds();
    rows.push_back(row);
  }

  Backend& backend_;
  DType dtype_;
  int repeats_;
  Tensor from_, to_;
};

}  // namespace

int bench_kernels(const KernelsBench& settings) {
  const bool gpu = settings.device == "cuda";
  const std::unique_ptr<Backend> backend =
      open_backend(gpu ? DeviceType::kCuda : DeviceType::kCpu, settings.threads);
  const std::int64_t batch = settings.batch > 0 ? settings.batch : gpu ? 2048 : 128;
  KernelBench bench(*backend, expected_compute(settings.precision, settings.device), batch,
                    settings.repeats);
  for (const Operation& op : tests::timing_table(batch)) bench.time(op);

  double peak = 0.0;
  std::vector<double> copy_rates;
  for (const Row& row : bench.rows) {
    peak = std::max(peak, row.flops / row.seconds);
    copy_rates.push_back(row.copy_rate);
  }
  nlohmann::json result{{"device", backend->description()},
                        {"precision", settings.precision},
                        {"batch", batch},
                        {"copy_gb_per_second", median(copy_rates) / 1e9},
                        {"peak_gflops", peak / 1e9}};
  if (!settings.json) {
    answer("{}, {}, batch {}; copy {:.1f} GB/s, fastest product {:.0f} GFLOP/s\n",
           backend->description(), settings.precision, batch, median(copy_rates) / 1e9, peak / 1e9);
  }
  for (const Row& row : bench.rows) {
    const bool memory = row.flops == 0.0;
    const double rate = (memory ? row.bytes : row.flops) / row.seconds,
                 ratio = rate / (memory ? row.copy_rate : peak);
    const char* unit = memory ? "GB/s" : "GFLOP/s";
    result["rows"].push_back({{"operation", row.name},
                              {"ms", 1e3 * row.seconds},
                              {"rate", rate / 1e9},
                              {"unit", unit},
                              {"ratio", ratio}});
    if (!settings.json) {
      answer("  {:<98} {:8.3f} ms {:8.1f} {:<8} {:5.2f} of the {}\n", row.name, 1e3 * row.seconds,
             rate / 1e9, unit, ratio, memory ? "copy" : "fastest product");
    }
  }
  if (settings.json) answer("{}\n", result.dump());
  return 0;
}

}  // namespace starling
