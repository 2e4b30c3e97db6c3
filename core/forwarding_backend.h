#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "core/accesses.h"
#include "core/backend.h"

namespace starling {

/// Hands every call on to another backend. What looks at calls on their way (a profile, a record of shapes) derives from it and
/// overrides around(); what looks at the memory that they touch, before() and notes_accesses().
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  DeviceType device() const override { return inner_.device(); }
  std::string description() const override { return inner_.description(); }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  MemoryStats memory_stats() const override { return inner_.memory_stats(); }
  void copy(const Tensor& from, const Tensor& to) override { inner_.copy(from, to); }
  void copy_from_host(const void* from, const Tensor& to) override { inner_.copy_from_host(from, to); }
  void copy_to_host(const Tensor& from, void* to) override { inner_.copy_to_host(from, to); }
  Event copy_to_host_later(const Tensor& from, void* to) override { return inner_.copy_to_host_later(from, to); }
  void fill(const Tensor& x, double value) override { inner_.fill(x, value); }
  bool fuses_batch_norms(DType dtype) const override { return inner_.fuses_batch_norms(dtype); }
  bool low_precision_gradients(DType dtype) const override { return inner_.low_precision_gradients(dtype); }
  void set_stream(StreamKind stream) override { inner_.set_stream(stream); }
  StreamKind stream() const override { return inner_.stream(); }
  Event record() override { return inner_.record(); }
  void wait(Event event) override { inner_.wait(event); }
  bool done(Event event) override { return inner_.done(event); }
  void* native_stream() const override { return inner_.native_stream(); }
  std::shared_ptr<std::byte> allocate_host(std::size_t bytes) override { return inner_.allocate_host(bytes); }
  void copy_to_pinned(const Tensor& from, std::byte* to) override { inner_.copy_to_pinned(from, to); }
  void copy_from_pinned(const std::byte* from, const Tensor& to) override { inner_.copy_from_pinned(from, to); }
  void synchronize(Event event) override { inner_.synchronize(event); }
  void synchronize() override { inner_.synchronize(); }
  bool begin_capture(const StepValues& values) override { return inner_.begin_capture(values); }
  std::unique_ptr<DeviceGraph> end_capture() override { return inner_.end_capture(); }
  void abandon_capture() noexcept override { inner_.abandon_capture(); }
  bool capturing() const override { return inner_.capturing(); }
  std::unique_ptr<DeviceClock> device_clock() override { return inner_.device_clock(); }
  PeerMemory* peer_memory() override { return inner_.peer_memory(); }

  void conv2d_forward(const Conv2dForward& args) override { call("conv2d_forward", &Backend::conv2d_forward, args); }
  void conv2d_backward_data(const Conv2dBackwardData& args) override { call("conv2d_backward_data", &Backend::conv2d_backward_data, args); }
  void conv2d_backward_weights(const Conv2dBackwardWeights& args) override {
    call("conv2d_backward_weights", &Backend::conv2d_backward_weights, args);
  }
  void matmul(const Matmul& args) override { call("matmul", &Backend::matmul, args); }
  void sum_rows(const SumRows& args) override { call("sum_rows", &Backend::sum_rows, args); }
  void activation_forward(const ActivationForward& args) override { call("activation_forward", &Backend::activation_forward, args); }
  void activation_backward(const ActivationBackward& args) override { call("activation_backward", &Backend::activation_backward, args); }
  void batch_norm_forward(const BatchNormForward& args) override { call("batch_norm_forward", &Backend::batch_norm_forward, args); }
  void batch_norm_backward(const BatchNormBackward& args) override { call("batch_norm_backward", &Backend::batch_norm_backward, args); }
  void channel_sums(const ChannelSums& args) override { call("channel_sums", &Backend::channel_sums, args); }
  void batch_norm_finish(const BatchNormFinish& args) override { call("batch_norm_finish", &Backend::batch_norm_finish, args); }
  void scale_shift(const ScaleShift& args) override { call("scale_shift", &Backend::scale_shift, args); }
  void batch_norm_backward_sums(const BatchNormBackwardSums& args) override {
    call("batch_norm_backward_sums", &Backend::batch_norm_backward_sums, args);
  }
  void batch_norm_backward_apply(const BatchNormBackwardApply& args) override {
    call("batch_norm_backward_apply", &Backend::batch_norm_backward_apply, args);
  }
  void layer_norm_forward(const LayerNormForward& args) override { call("layer_norm_forward", &Backend::layer_norm_forward, args); }
  void layer_norm_backward(const LayerNormBackward& args) override { call("layer_norm_backward", &Backend::layer_norm_backward, args); }
  void pool2d_forward(const Pool2dForward& args) override { call("pool2d_forward", &Backend::pool2d_forward, args); }
  void pool2d_backward(const Pool2dBackward& args) override { call("pool2d_backward", &Backend::pool2d_backward, args); }
  void global_avg_pool_forward(const GlobalAvgPoolForward& args) override {
    call("global_avg_pool_forward", &Backend::global_avg_pool_forward, args);
  }
  void global_avg_pool_backward(const GlobalAvgPoolBackward& args) override {
    call("global_avg_pool_backward", &Backend::global_avg_pool_backward, args);
  }
  void add(const Add& args) override { call("add", &Backend::add, args); }
  void subsample_pad_forward(const SubsamplePadForward& args) override {
    call("subsample_pad_forward", &Backend::subsample_pad_forward, args);
  }
  void subsample_pad_backward(const SubsamplePadBackward& args) override {
    call("subsample_pad_backward", &Backend::subsample_pad_backward, args);
  }
  void flatten_channels_first(const FlattenChannelsFirst& args) override {
    call("flatten_channels_first", &Backend::flatten_channels_first, args);
  }
  void dropout(const Dropout& args) override { call("dropout", &Backend::dropout, args); }
  void softmax_cross_entropy(const SoftmaxCrossEntropy& args) override {
    call("softmax_cross_entropy", &Backend::softmax_cross_entropy, args);
  }
  void classification_metrics(const ClassificationMetrics& args) override {
    call("classification_metrics", &Backend::classification_metrics, args);
  }
  void cast(const Cast& args) override { call("cast", &Backend::cast, args); }
  void augment_images(const AugmentImages& args) override { call("augment_images", &Backend::augment_images, args); }
  void weighted_sum(const WeightedSum& args) override { call("weighted_sum", &Backend::weighted_sum, args); }
  void squared_distance(const SquaredDistance& args) override { call("squared_distance", &Backend::squared_distance, args); }
  void gradient_control(const GradientControl& args) override { call("gradient_control", &Backend::gradient_control, args); }
  void update(const OptimizerRule& rule, const UpdateArgs& args) override {
    around("update", [&] { inner_.update(rule, args); });
  }

 protected:
  /// Called in place of every operation; must call `operation` once.
  virtual void around(std::string_view name, const std::function<void()>& operation) {
    (void)name;
    operation();
  }
  /// Called before every operation with what it reads and writes, where notes_accesses(); before update() only by who overrides that, for
  /// its arguments are not known here.
  virtual void before(std::string_view name, const Accesses& accesses) { (void)name, (void)accesses; }
  virtual bool notes_accesses() const { return false; }
  Backend& inner() { return inner_; }

 private:
  template <class Args>
  void call(std::string_view name, void (Backend::*operation)(const Args&), const Args& args) {
    if (notes_accesses()) before(name, accesses_of(args));
    around(name, [&] { (inner_.*operation)(args); });
  }
  Backend& inner_;
};

}  // namespace starling
