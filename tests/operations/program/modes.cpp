// test_operations: the table of operations on a device, outside of the tests that are built with
// it: whether results and gradients are right, how fast they come, and what a backend lacks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/training/device/device.h"
#include "apps/training/output/arguments.h"
#include "core/console.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/text.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/open_backend.h"
#include "tests/operations/operation_table.h"
#include "tests/operations/program/speed.h"

namespace starling::tests {

Tensor patterned(Backend& backend, const Shape& shape, DType dtype) {
  Tensor result(backend, shape, dtype);
  if (!is_floating(dtype)) return result;
  std::vector<float> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = 0.01f * static_cast<float>(i % 97) - 0.5f;
  const Tensor wide = dtype == DType::kFloat32 ? result : Tensor(backend, shape, DType::kFloat32);
  backend.copy_from_host(numbers.data(), wide);
  if (dtype != DType::kFloat32) backend.cast({.x = wide, .y = result});
  return result;
}

namespace {

struct Settings {
  std::string device = "cpu", precision = "fp32", only;
  std::int64_t batch = 0;
  int threads = 1, repeats = 20;
  bool functions = false, json = false;
};

/// One line for each row of which `wrong` says something. Returns the exit status.
int check_rows(const Settings& settings,
               const std::function<std::string(const Operation&)>& wrong) {
  int rows = 0, bad = 0;
  for (const Operation& op : operation_table()) {
    if (op.name.find(settings.only) == std::string::npos) continue;
    ++rows;
    const std::string what = wrong(op);
    if (what.empty()) continue;
    ++bad;
    answer("{}: {}\n", op.name, what);
  }
  if (rows == 0) fail(ExitCode::kUsage, "operations", "--only: no row has '{}'", settings.only);
  answer("{}, {} wrong\n", counted(rows, "row"), bad);
  return bad > 0 ? 1 : 0;
}

/// Rows of the table that the device computes, by the types of activations in which it does.
int tell_support(const Settings& settings, Backend& backend) {
  std::map<std::string, std::set<std::string>> types;
  for (const Operation& op : operation_table()) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
      for (const std::string& name : names_in(op)) types.try_emplace(name);
      try {
        run(op, backend, dtype, random_inputs(op, dtype), random_seed(op, dtype));
        for (const std::string& name : names_in(op)) types[name].emplace(name_of(dtype));
      } catch (const Error&) {
        // not this one
      }
    }
  }
  for (const auto& [name, of] : types) {
    if (name.find(settings.only) != std::string::npos)
      answer("{:<28}{}\n", name, of.empty() ? "no" : fmt::format("{}", fmt::join(of, " ")));
  }
  return 0;
}

/// The median time of calls that alternate with other work. add() measures once more, over enough
/// calls to last a few milliseconds, so that launch overhead and the final wait are negligible.
class Timing {
 public:
  Timing(Backend& backend, std::function<void()> work) : backend_(backend), work_(std::move(work)) {
    seconds_each(1);  // the first call may plan and allocate
    calls_ = static_cast<int>(std::clamp(std::ceil(4e-3 / seconds_each(1)), 1.0, 100.0));
  }
  void add() { seconds_.push_back(seconds_each(calls_)); }
  double seconds() const { return median(seconds_); }

 private:
  double seconds_each(int calls) const {
    backend_.synchronize();
    return seconds_of([&] {
             for (int i = 0; i < calls; ++i) work_();
             backend_.synchronize();
           }) /
           calls;
  }

  Backend& backend_;
  std::function<void()> work_;
  int calls_ = 1;
  std::vector<double> seconds_;
};

/// Times both passes of a row.
void time_row(const Operation& op, Backend& backend, DType dtype, const Timed& time) {
  std::vector<Tensor> in, out, saved, gradients;
  // Inputs with constraints are drawn; for all others a pattern is sufficient.
  const bool drawn =
      op.fit || std::any_of(op.input_roles.begin(), op.input_roles.end(), is_integer);
  const std::vector<Numbers> numbers = drawn ? random_inputs(op, dtype) : std::vector<Numbers>{};
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const DType type = op.input_dtype(i, dtype);
    in.push_back(drawn ? to_tensor(backend, numbers[i], op.inputs[i], type)
                       : patterned(backend, op.inputs[i], type));
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    out.push_back(patterned(backend, op.outputs[i], op.output_dtype(i, dtype)));
  const PassWork work = work_of(op, dtype);
  const auto pass = [&](const char* name, const Work& of, const std::function<void()>& run) {
    time(op.name + name, of.flops > 0.0 ? 0.0 : of.bytes, of.flops, run);
  };
  const auto forward = [&] { op.forward(backend, in, out, saved); };
  pass(op.backward ? ", forward" : "", work.forward, forward);
  if (!op.backward) return;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    gradients.push_back(op.differentiable(i)
                            ? patterned(backend, op.inputs[i], op.gradient_dtype(i, dtype))
                            : Tensor());
  }
  const Tensor dy = patterned(backend, op.outputs[0], op.output_dtype(0, dtype));
  pass(", backward", work.backward, [&] { op.backward(backend, in, out, saved, dy, gradients); });
}

/// What is bound by memory is compared with a copy that alternates with it, products with the
/// fastest one of the run.
int tell_speed(const Settings& settings, Backend& backend, DType dtype) {
  const std::int64_t batch = settings.batch > 0                      ? settings.batch
                             : backend.device() == DeviceType::kCuda ? 2048
                                                                     : 128;
  const Tensor from = patterned(backend, {batch, 32, 32, 16}, dtype),
               to(backend, from.shape(), dtype);
  struct Row {
    std::string name;
    double bytes, flops, seconds, copy_rate;
  };
  std::vector<Row> rows;
  std::vector<double> copy_rates;
  double peak = 0.0;
  const Timed time = [&](const std::string& name, double bytes, double flops,
                         const std::function<void()>& work) {
    Timing copy(backend, [&] { backend.copy(from, to); }), own(backend, work);
    for (int i = 0; i < settings.repeats; ++i) {
      copy.add();
      own.add();
    }
    copy_rates.push_back(2.0 * static_cast<double>(from.bytes()) / copy.seconds());
    rows.push_back({name, bytes, flops, own.seconds(), copy_rates.back()});
    peak = std::max(peak, flops / own.seconds());
  };
  if (settings.functions) {
    time_functions(backend, dtype, settings.only, time);
  } else {
    for (const Operation& op : timing_table(batch)) {
      if (op.name.find(settings.only) != std::string::npos) time_row(op, backend, dtype, time);
    }
  }
  if (rows.empty()) fail(ExitCode::kUsage, "operations", "--only: no row has '{}'", settings.only);
  nlohmann::json result{{"device", backend.description()},
                        {"precision", settings.precision},
                        {"copy_gb_per_second", median(copy_rates) / 1e9},
                        {"peak_gflops", peak / 1e9}};
  if (!settings.json) {
    answer("{}, {}; copy {:.1f} GB/s, fastest product {:.0f} GFLOP/s\n", backend.description(),
           settings.precision, median(copy_rates) / 1e9, peak / 1e9);
  }
  for (const Row& row : rows) {
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

int run_operations(int argc, char** argv) {
  CLI::App app{"The table of operations on a device.", "test_operations"};
  app.require_subcommand(1);
  Settings settings;
  const auto add = [&](const char* name, const char* doc) {
    CLI::App* mode = app.add_subcommand(name, doc);
    mode->add_option("--device", settings.device, "cpu or cuda")
        ->capture_default_str()
        ->check(CLI::IsMember({"cpu", "cuda"}));
    mode->add_option("--only", settings.only, "rows whose names have this in them");
    add_number(*mode, "--threads", settings.threads, "of a CPU", 1, 1024);
    return mode;
  };
  const auto add_precision = [&](CLI::App* mode) {
    mode->add_option("--precision", settings.precision, "of activations")
        ->capture_default_str()
        ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  };
  CLI::App* test = add("test", "results, against the CPU's fp64");
  CLI::App* gradient = add("gradient", "gradients in fp64, against finite differences");
  CLI::App* speed = add("speed", "times, against a copy or the fastest product");
  add("support", "the operations that the device has, and in which types");
  for (CLI::App* mode : {test, speed}) add_precision(mode);
  speed
      ->add_option("--batch", settings.batch,
                   "samples; by default 128 on a CPU, 2048 on a GPU, beyond its caches")
      ->check(whole_in(1, 1 << 16));
  speed->add_flag("--functions", settings.functions,
                  "functions of tensors, forward and backward, instead of single operations");
  add_number(*speed, "--repeats", settings.repeats, "runs to take the median of", 1, 100000);
  speed->add_flag("--json", settings.json, "one JSON object");
  if (const auto status = parse_arguments(app, argc, argv)) return *status;

  const std::unique_ptr<Backend> backend = open_backend(
      settings.device == "cuda" ? DeviceType::kCuda : DeviceType::kCpu, settings.threads);
  const DType dtype = expected_compute(settings.precision, settings.device);
  if (*test) {
    CpuBackend plain(1, cpu::Isa::kScalar);
    return check_rows(settings, [&](const Operation& op) {
      const std::vector<Numbers> inputs = random_inputs(op, dtype);
      const Numbers seed = random_seed(op, dtype);
      return difference(op, dtype, run(op, *backend, dtype, inputs, seed),
                        run(op, plain, DType::kFloat64, inputs, seed));
    });
  }
  if (*gradient)
    return check_rows(settings, [&](const Operation& op) { return wrong_slopes(op, *backend); });
  return *speed ? tell_speed(settings, *backend, dtype) : tell_support(settings, *backend);
}

}  // namespace
}  // namespace starling::tests

int main(int argc, char** argv) {
  return starling::run_program("test_operations",
                               [&] { return starling::tests::run_operations(argc, argv); });
}
