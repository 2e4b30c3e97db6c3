#include "apps/bench/benches.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/support.h"
#include "core/backend.h"
#include "core/config.h"
#include "core/console.h"
#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/sparse.h"
#include "core/operations/updates.h"
#include "core/random.h"
#include "core/tensor.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

/// Copies instead of updating, so that the copy uses the same threads and spans as the update
/// kernels.
class CopyRule : public OptimizerRule {
 public:
  explicit CopyRule(bool library) : OptimizerRule({}), library_(library) {}
  int bytes_per_parameter(int element_size) const override { return 2 * element_size; }

 private:
  CpuStep<float> step_fp32(double, std::int64_t) const override { return copies<float>(); }
  CpuStep<double> step_fp64(double, std::int64_t) const override { return copies<double>(); }
  template <class T>
  CpuStep<T> copies() const {
    return {.update = [this](const UpdateSpan<T>& span) { copy(span); }};
  }
  template <class T>
  void copy(const UpdateSpan<T>& span) const {
    if (library_) {
      std::memcpy(span.x_out, span.x, static_cast<std::size_t>(span.n) * sizeof(T));
      return;
    }
    const T* from = span.x;
    T* to = span.x_out;
    const T one = span.gradient_scale;  // prevents the compiler from calling memcpy
#pragma GCC ivdep
    for (std::int64_t i = 0; i < span.n; ++i) to[i] = one * from[i];
  }
  bool library_;
};

/// One line of the table.
struct UpdateSubject {
  std::string name;
  std::unique_ptr<OptimizerRule> rule;
  UpdateArgs args;
  /// Updates timed together: a whole group if the traffic depends on the step
  int updates = 1;
  double bytes = 0.0;                 ///< moved by one update
  std::function<void()> before = {};  ///< called before the updates, within the timing
  std::vector<double> seconds;        ///< per update, by repeat
};

std::unique_ptr<OptimizerRule> make_rule(const std::string& type, const nlohmann::json& config) {
  ConfigSection section(config, "bench");
  auto rule = optimizers().make(type, "optimizer.type", section);
  section.finish();
  return rule;
}

Tensor filled(Backend& backend, std::int64_t n, double value) {
  Tensor result(backend, Shape{n}, DType::kFloat32);
  backend.fill(result, value);
  return result;
}

double gigabytes_per_second(const UpdateSubject& subject, double seconds) {
  return subject.bytes / seconds * 1e-9;
}

}  // namespace

int bench_update(std::int64_t parameters, int threads, int repeats, bool json) {
  if (parameters < 1 || parameters > (std::int64_t{1} << 33))
    fail(ExitCode::kUsage, "bench", "{} parameters; 1 … 2^33 are possible", parameters);
  if (repeats < 1) fail(ExitCode::kUsage, "bench", "{} repeats; at least 1 is needed", repeats);
  register_builtin_optimizers();
  const auto backend = open_backend(DeviceType::kCpu, threads);
  const std::int64_t n = (parameters + 31) / 32 * 32;

  UpdateArgs base;
  base.x = base.x_out = filled(*backend, n, 0.5);
  base.gradient = filled(*backend, n, 1e-3);
  base.decay = Tensor(*backend, Shape{n / 32}, DType::kUInt8);
  const std::vector<std::uint8_t> ones(static_cast<std::size_t>(n / 32), 1);
  backend->copy_from_host(ones.data(), base.decay);
  base.lr = 1e-4;
  const Tensor received = filled(*backend, n, 0.25);
  std::vector<Tensor> states;
  for (int k = 0; k < 3; ++k) states.push_back(filled(*backend, n, 0.0));

  std::vector<UpdateSubject> subjects;
  UpdateArgs copy;
  copy.x = filled(*backend, 4 * n, 1.0);
  copy.x_out = filled(*backend, 4 * n, 0.0);
  copy.gradient = copy.x;
  copy.decay = Tensor(*backend, Shape{n / 8}, DType::kUInt8);
  const std::vector<std::uint8_t> zeros(static_cast<std::size_t>(n / 8), 0);
  backend->copy_from_host(zeros.data(), copy.decay);
  for (const bool library : {true, false}) {
    subjects.push_back({library ? "copy (memcpy)" : "copy (loop)",
                        std::make_unique<CopyRule>(library), copy, 1,
                        32.0 * static_cast<double>(n)});
  }
  // Layers of equal size, as many as ResNet-50 has weights.
  std::vector<LayerExtent> extents;
  const std::int64_t each = (n / 54 + kDecayBlock - 1) / kDecayBlock * kDecayBlock;
  for (std::int64_t first = 0; first < n; first += each)
    extents.push_back({first, std::min(each, n - first)});
  const UpdateLayers layers = make_update_layers(*backend, extents, n);
  const auto add = [&](const std::string& type, const nlohmann::json& config, int updates) {
    for (const bool mixing : {false, true}) {
      UpdateSubject subject{type + (mixing ? " + mixing" : ""), make_rule(type, config), base,
                            updates};
      const std::size_t state_count = subject.rule->facts().states.size();
      subject.args.states.assign(states.begin(),
                                 states.begin() + static_cast<std::ptrdiff_t>(state_count));
      if (mixing) {
        subject.args.received = {received};
        subject.args.weights = {0.5};
        subject.args.self_weight = 0.5;
      }
      if (subject.rule->facts().measures_layers) subject.args.layers = layers;
      subject.bytes =
          (subject.rule->bytes_per_parameter(4) + (mixing ? 4 : 0)) * static_cast<double>(n);
      subjects.push_back(std::move(subject));
    }
  };
  // The messages of a neighbour and of the rank itself, decoded during the update or before it.
  const Tensor message(*backend, Shape{message_bytes(Code::kInt8, DType::kFloat32, n, 256)},
                       DType::kUInt8);
  backend->encode({.x = received, .message = message, .code = Code::kInt8, .block = 256});
  const Decode decode{.messages = {message, message},
                      .weight = {-0.5, 0.5},
                      .terms = 2,
                      .out = received,
                      .code = Code::kInt8,
                      .block = 256};
  const auto add_decoding = [&] {
    for (const bool before : {false, true}) {
      UpdateSubject subject{before ? "adamw, 8 bits, in two passes" : "adamw + mixing 8 bits",
                            make_rule("adamw", nlohmann::json::object()), base};
      subject.args.states.assign(states.begin(), states.begin() + 2);
      subject.args.weights = {1.0};
      subject.args.received = {message, message};
      subject.args.sum_received = true;
      subject.args.encoded = {.weights = {-0.5, 0.5}, .code = Code::kInt8, .block = 256};
      if (before) {
        subject.before = [&] { backend->decode(decode); };
        subject.args.received = {received};
        subject.args.sum_received = false;
        subject.args.encoded = {};
      }
      subject.bytes = (subject.rule->bytes_per_parameter(4) + 2.0) * static_cast<double>(n);
      subjects.push_back(std::move(subject));
    }
  };
  // Encoding and decoding of a bucket sent in 8 bits. The numbers differ, since encoding depends on
  // them.
  const Tensor unlike(*backend, Shape{n}, DType::kFloat32),
      decoded(*backend, Shape{n}, DType::kFloat32), rest(*backend, Shape{n}, DType::kFloat32);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits =
        random_bits(1, RandomStream::kInit, 0, static_cast<std::uint64_t>(i)).v[0];
    unlike.data<float>()[i] = static_cast<float>(bits) * 0x1p-32f - 0.5f;
  }
  const auto add_codec = [&](const char* name, Code code) {
    const Tensor codes(*backend, Shape{message_bytes(code, DType::kFloat32, n, 256)},
                       DType::kUInt8);
    const auto part = [&](const char* what, double bytes, std::function<void()> work) {
      subjects.push_back({fmt::format("{}: {}", name, what),
                          nullptr,
                          {},
                          1,
                          bytes * static_cast<double>(n),
                          std::move(work)});
    };
    const auto to_codes = [&, code, codes] {
      backend->encode({.x = unlike, .message = codes, .code = code, .block = 256});
    };
    const auto from_codes = [&, code, codes] {
      backend->decode({.messages = {codes},
                       .weight = {1.0},
                       .terms = 1,
                       .out = decoded,
                       .code = code,
                       .block = 256});
    };
    const double moved = 4.0 + static_cast<double>(codes.bytes()) / static_cast<double>(n);
    part("encode", moved, to_codes);
    part("decode", moved, from_codes);
    part("encode + decode", 2.0 * moved, [=] { to_codes(), from_codes(); });
    // Before an outer step: a difference and what the last one left, and what this one leaves.
    const auto to_difference = [&, code, codes] {
      backend->encode({.x = unlike,
                       .message = codes,
                       .code = code,
                       .block = 256,
                       .minus = decoded,
                       .residual = rest,
                       .decay = 0.95});
    };
    part("difference with residual", moved + 12.0, to_difference);
  };
  const auto add_sparse = [&](const char* name, double share) {
    const SparseLayout layout(*backend, n, {{0, n}}, 4096, share, 2);
    const Tensor codes(*backend, Shape{layout.bytes}, DType::kUInt8);
    const auto part = [&](const char* what, double bytes, std::function<void()> work) {
      subjects.push_back({fmt::format("{}: {}", name, what),
                          nullptr,
                          {},
                          1,
                          bytes * static_cast<double>(n),
                          std::move(work)});
    };
    const double moved = static_cast<double>(layout.bytes) / static_cast<double>(n);
    part("difference with residual", moved + 16.0, [&, layout, codes] {
      backend->sparse_encode({.x = unlike,
                              .message = codes,
                              .layout = layout,
                              .minus = decoded,
                              .residual = rest,
                              .decay = 0.95});
    });
    part("mean of 4", 4.0 * moved + 4.0, [&, layout, codes] {
      backend->sparse_decode(
          {.messages = {codes, codes, codes, codes}, .out = decoded, .layout = layout});
    });
  };
  add_codec("int8", Code::kInt8);
  add_codec("minmax8", Code::kMinMax8);
  add_codec("int4", Code::kInt4);
  add_sparse("sparse 1/16", 1.0 / 16.0);
  add_sparse("sparse 1/64", 1.0 / 64.0);
  add("sgd", nlohmann::json::object(), 1);
  add("sgd", {{"momentum", 0.9}}, 1);
  subjects[subjects.size() - 2].name = "sgd momentum";
  subjects[subjects.size() - 1].name = "sgd momentum + mixing";
  add("adamw", nlohmann::json::object(), 1);
  add_decoding();
  add("accum_adamw", {{"accum_iter", 4}}, 4);
  add("lars", nlohmann::json::object(), 1);
  add("lamb", nlohmann::json::object(), 1);

  for (int repeat = -1; repeat < repeats; ++repeat) {  // one round of warm-up
    for (UpdateSubject& subject : subjects) {
      const auto begin = std::chrono::steady_clock::now();
      for (int s = 1; s <= subject.updates; ++s) {
        subject.args.step = s;
        if (subject.before) subject.before();
        if (subject.rule) backend->update({*subject.rule, subject.args});
      }
      backend->synchronize();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (repeat >= 0) subject.seconds.push_back(took.count() / subject.updates);
    }
  }

  const UpdateSubject& fastest_copy =
      median(subjects[0].seconds) <= median(subjects[1].seconds) ? subjects[0] : subjects[1];
  nlohmann::json rows = nlohmann::json::array();
  if (!json) {
    answer(
        "{}\n{} parameters in fp32, {} thread{}, median of {} repeats; ratio to the faster "
        "copy\n\n",
        backend->description(), n, threads, threads == 1 ? "" : "s", repeats);
    answer("{:<30}{:>12}{:>10}{:>10}{:>8}\n", "", "bytes/param", "ms", "GB/s", "ratio");
  }
  for (const UpdateSubject& subject : subjects) {
    const double seconds = median(subject.seconds);
    std::vector<double> ratios;  // by repeat, so that a slow moment of the machine affects both
    for (std::size_t r = 0; r < subject.seconds.size(); ++r) {
      ratios.push_back(gigabytes_per_second(subject, subject.seconds[r]) /
                       gigabytes_per_second(fastest_copy, fastest_copy.seconds[r]));
    }
    const double rate = gigabytes_per_second(subject, seconds), ratio = median(ratios),
                 bytes = subject.bytes / static_cast<double>(n);
    if (json) {
      rows.push_back({{"name", subject.name},
                      {"bytes_per_parameter", bytes},
                      {"ms", seconds * 1e3},
                      {"gb_per_s", rate},
                      {"ratio_to_copy", ratio}});
    } else {
      answer("{:<30}{:>12.0f}{:>10.3f}{:>10.2f}{:>8.2f}\n", subject.name, bytes, seconds * 1e3,
             rate, ratio);
    }
  }
  if (json) {
    const nlohmann::json document = {{"device", backend->description()},
                                     {"parameters", n},
                                     {"threads", threads},
                                     {"repeats", repeats},
                                     {"faster_copy", fastest_copy.name},
                                     {"results", rows}};
    answer("{}\n", document.dump());
  }
  return 0;
}

}  // namespace starling
