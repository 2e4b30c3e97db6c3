#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "core/backend.h"
#include "core/error.h"
#include "kernels/cpu/cpu_backend.h"

namespace starling::test {

/// A folder of the test's own, removed with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "starling-test-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

using Bytes = std::vector<std::uint8_t>;

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The message of the Error that `action` throws with `code`; "" if it throws none or another.
template <class Action>
std::string message_of(ExitCode code, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code() == code ? error.what() : "another code: " + std::string(error.what());
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A data set from the JSON of its `data` section, keys checked.
inline std::unique_ptr<Dataset> make_dataset(const nlohmann::json& json, std::uint64_t seed = 1) {
  register_builtin_datasets();
  ConfigSection section(json, "test.json");
  const std::string type = section.required_text("type", "");
  auto dataset = datasets().make(type, "data.type", section, seed);
  section.finish();
  return dataset;
}

/// Labelled images whose bytes tell split, sample and position.
class NumberedDataset : public Dataset {
 public:
  NumberedDataset(std::int64_t train, std::int64_t test, Shape image = Shape{6, 5, 3}, std::int64_t classes = 10) {
    info_.image = image;
    info_.classes = classes;
    info_.train_samples = train;
    info_.test_samples = test;
    info_.mean = {0.3, 0.4, 0.5, 0.6};
    info_.std = {0.2, 0.25, 0.3, 0.35};
  }
  DatasetInfo info() const override { return info_; }
  void open() override {}
  std::int64_t label(Split split, std::int64_t index) const override {
    return index == bad_sample ? info_.classes : (index * 7 + (split == Split::kTest ? 3 : 0)) % info_.classes;
  }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    for (std::int64_t i = 0; i < info_.image.elements(); ++i) {
      out[i] = static_cast<std::uint8_t>(index * 31 + i * 5 + (split == Split::kTest ? 101 : 0));
    }
  }
  std::int64_t bad_sample = -1;

 private:
  DatasetInfo info_;
};

/// A backend that has memory only: what the loader needs. `host` false plays a device with memory of its own, which augments.
class MemoryBackend : public Backend {
 public:
  explicit MemoryBackend(bool host = true) : host_(host) {}
  DeviceType device() const override { return host_ ? DeviceType::kCpu : DeviceType::kCuda; }
  std::string description() const override { return "memory"; }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    ++allocations;
    return std::make_shared<Block>(*this, bytes);
  }
  MemoryStats memory_stats() const override { return {}; }
  void copy_from_host(const void* from, const Tensor& to) override {
    ++copies;
    std::memcpy(to.raw(), from, to.bytes());
  }
  void copy(const Tensor&, const Tensor&) override { no(); }
  void copy_to_host(const Tensor&, void*) override { no(); }
  Event copy_to_host_later(const Tensor&, void*) override { no(); }
  void fill(const Tensor&, double) override { no(); }
  void set_stream(StreamKind) override {}
  StreamKind stream() const override { return StreamKind::kCompute; }
  Event record() override { return {}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}
  void conv2d_forward(const Conv2dForward&) override { no(); }
  void conv2d_backward_data(const Conv2dBackwardData&) override { no(); }
  void conv2d_backward_weights(const Conv2dBackwardWeights&) override { no(); }
  void matmul(const Matmul&) override { no(); }
  void sum_rows(const SumRows&) override { no(); }
  void activation_forward(const ActivationForward&) override { no(); }
  void activation_backward(const ActivationBackward&) override { no(); }
  void batch_norm_forward(const BatchNormForward&) override { no(); }
  void batch_norm_backward(const BatchNormBackward&) override { no(); }
  void channel_sums(const ChannelSums&) override { no(); }
  void batch_norm_finish(const BatchNormFinish&) override { no(); }
  void scale_shift(const ScaleShift&) override { no(); }
  void batch_norm_backward_sums(const BatchNormBackwardSums&) override { no(); }
  void batch_norm_backward_apply(const BatchNormBackwardApply&) override { no(); }
  void layer_norm_forward(const LayerNormForward&) override { no(); }
  void layer_norm_backward(const LayerNormBackward&) override { no(); }
  void pool2d_forward(const Pool2dForward&) override { no(); }
  void pool2d_backward(const Pool2dBackward&) override { no(); }
  void global_avg_pool_forward(const GlobalAvgPoolForward&) override { no(); }
  void global_avg_pool_backward(const GlobalAvgPoolBackward&) override { no(); }
  void add(const Add&) override { no(); }
  void subsample_pad_forward(const SubsamplePadForward&) override { no(); }
  void subsample_pad_backward(const SubsamplePadBackward&) override { no(); }
  void flatten_channels_first(const FlattenChannelsFirst&) override { no(); }
  void dropout(const Dropout&) override { no(); }
  void softmax_cross_entropy(const SoftmaxCrossEntropy&) override { no(); }
  void classification_metrics(const ClassificationMetrics&) override { no(); }
  void cast(const Cast&) override { no(); }
  void augment_images(const AugmentImages& args) override {
    if (host_) no();
    ++augmentations;
    cpu_.augment_images(args);  // it looks at addresses alone
  }
  void weighted_sum(const WeightedSum&) override { no(); }
  void squared_distance(const SquaredDistance&) override { no(); }
  void gradient_control(const GradientControl&) override { no(); }
  void update(const OptimizerRule&, const UpdateArgs&) override { no(); }

  int allocations = 0, copies = 0, augmentations = 0;

 private:
  class Block : public Storage {
   public:
    Block(Backend& backend, std::size_t bytes)
        : Storage(backend, static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64)), bytes) {}
    ~Block() override { std::free(data()); }
  };
  [[noreturn]] static void no() { throw std::logic_error("this backend has memory only"); }
  bool host_;
  CpuBackend cpu_{1};
};

}  // namespace starling::test
