#pragma once

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "core/backend.h"
#include "core/error.h"

namespace starling::test {

/// A backend in host memory with the little arithmetic (fp32 add, scaling, fill, copies) that the autograd engine itself needs; it counts
/// live bytes.
class HostBackend final : public Backend {
 public:
  DeviceType device() const override { return DeviceType::kCpu; }
  std::string description() const override { return "test"; }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    ++stats_->allocations;
    stats_->in_use += bytes;
    return std::make_shared<Block>(*this, bytes, stats_);
  }
  MemoryStats memory_stats() const override { return *stats_; }
  void copy(const Tensor& from, const Tensor& to) override { std::memcpy(to.raw(), from.raw(), from.bytes()); }
  void copy_from_host(const void* from, const Tensor& to) override { std::memcpy(to.raw(), from, to.bytes()); }
  void copy_to_host(const Tensor& from, void* to) override { std::memcpy(to, from.raw(), from.bytes()); }
  Event copy_to_host_later(const Tensor& from, void* to) override {
    copy_to_host(from, to);
    return {};
  }
  void fill(const Tensor& x, double value) override {
    for (float& element : x.span<float>()) element = static_cast<float>(value);
  }
  void add(const Add& args) override {
    ++additions;
    for (std::size_t i = 0; i < args.y.span<float>().size(); ++i)
      args.y.span<float>()[i] = args.a.span<float>()[i] + args.b.span<float>()[i];
  }

  void set_stream(StreamKind stream) override { stream_ = stream; }
  StreamKind stream() const override { return stream_; }
  Event record() override { return {}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}

  void conv2d_forward(const Conv2dForward&) override { none(); }
  void conv2d_backward_data(const Conv2dBackwardData&) override { none(); }
  void conv2d_backward_weights(const Conv2dBackwardWeights&) override { none(); }
  void matmul(const Matmul&) override { none(); }
  void sum_rows(const SumRows&) override { none(); }
  void activation_forward(const ActivationForward&) override { none(); }
  void activation_backward(const ActivationBackward&) override { none(); }
  void batch_norm_forward(const BatchNormForward&) override { none(); }
  void batch_norm_backward(const BatchNormBackward&) override { none(); }
  void channel_sums(const ChannelSums&) override { none(); }
  void batch_norm_finish(const BatchNormFinish&) override { none(); }
  void scale_shift(const ScaleShift& args) override {
    ++scalings;
    for (std::size_t i = 0; i < args.y.span<float>().size(); ++i) {
      const std::size_t c = i % args.scale.span<float>().size();
      const float y = args.scale.span<float>()[c] * args.x.span<float>()[i] + args.shift.span<float>()[c];
      args.y.span<float>()[i] = args.relu && y < 0 ? 0.0f : y;
    }
  }
  void batch_norm_backward_sums(const BatchNormBackwardSums&) override { none(); }
  void batch_norm_backward_apply(const BatchNormBackwardApply&) override { none(); }
  void layer_norm_forward(const LayerNormForward&) override { none(); }
  void layer_norm_backward(const LayerNormBackward&) override { none(); }
  void pool2d_forward(const Pool2dForward&) override { none(); }
  void pool2d_backward(const Pool2dBackward&) override { none(); }
  void global_avg_pool_forward(const GlobalAvgPoolForward&) override { none(); }
  void global_avg_pool_backward(const GlobalAvgPoolBackward&) override { none(); }
  void subsample_pad_forward(const SubsamplePadForward&) override { none(); }
  void subsample_pad_backward(const SubsamplePadBackward&) override { none(); }
  void flatten_channels_first(const FlattenChannelsFirst&) override { none(); }
  void dropout(const Dropout&) override { none(); }
  void softmax_cross_entropy(const SoftmaxCrossEntropy&) override { none(); }
  void classification_metrics(const ClassificationMetrics&) override { none(); }
  void cast(const Cast&) override { none(); }
  void augment_images(const AugmentImages&) override { none(); }
  void weighted_sum(const WeightedSum&) override { none(); }
  void squared_distance(const SquaredDistance&) override { none(); }
  void gradient_control(const GradientControl&) override { none(); }
  void update(const OptimizerRule&, const UpdateArgs&) override { none(); }

  int additions = 0, scalings = 0;

 private:
  class Block final : public Storage {
   public:
    Block(Backend& backend, std::size_t bytes, std::shared_ptr<MemoryStats> stats)
        : Storage(backend, new (std::align_val_t{64}) std::byte[bytes + 1], bytes), stats_(std::move(stats)) {}
    ~Block() override {
      stats_->in_use -= bytes();
      ::operator delete[](data(), std::align_val_t{64});
    }

   private:
    std::shared_ptr<MemoryStats> stats_;
  };
  [[noreturn]] static void none() {
    fail(ExitCode::kInternal, "test", "the autograd engine called an operation that it has no business with");
  }

  std::shared_ptr<MemoryStats> stats_ = std::make_shared<MemoryStats>();
  StreamKind stream_ = StreamKind::kCompute;
};

}  // namespace starling::test
