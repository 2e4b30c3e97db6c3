#include "apps/training/tasks/loss.h"

#include "core/operations/losses.h"
#include "layers/functions.h"

namespace starling {
namespace {

/// A function of outputs and targets; a class number stands for a row of zeros with a 1.
class OfTargets final : public Loss {
 public:
  explicit OfTargets(const functions::TargetLossSettings& settings) : settings_(settings) {}
  Variable value(const Variable& outputs, const Tensor& targets, double scale,
                 Pass& pass) const override {
    if (weights_.empty()) return functions::target_loss(outputs, targets, settings_, scale, pass);
    functions::TargetLossSettings settings = settings_;
    settings.class_weights = weights_on(pass.backend);
    return functions::target_loss(outputs, targets, settings, scale, pass);
  }
  bool takes_shares() const override { return true; }
  bool is_cross_entropy() const override {
    return settings_.kind == LossKind::kCrossEntropy && settings_.label_smoothing == 0.0 &&
           weights_.empty();
  }
  bool takes_ignored() const override { return is_softmax(settings_.kind); }
  void ignore() override { settings_.ignore_index = functions::kIgnoreIndex; }
  bool takes_class_weights() const override { return is_softmax(settings_.kind); }
  void set_class_weights(const std::vector<double>& weights) override {
    weights_ = weights;
    on_device_ = Tensor();
  }

 private:
  /// Kept, since steps that are replayed take them from the same place; a trace's backend has none.
  Tensor weights_on(Backend& backend) const {
    const Shape shape{static_cast<std::int64_t>(weights_.size())};
    if (backend.device() == DeviceType::kMeta) return Tensor(backend, shape, DType::kFloat64);
    if (!on_device_ || &on_device_.backend() != &backend) {
      on_device_ = Tensor(backend, shape, DType::kFloat64);
      backend.copy_from_host(weights_.data(), on_device_);
    }
    return on_device_;
  }

  functions::TargetLossSettings settings_;
  std::vector<double> weights_;
  mutable Tensor on_device_;
};

}  // namespace

LossRegistry& losses() {
  static LossRegistry registry("loss");
  return registry;
}

void register_builtin_losses() {
  static const bool once = [] {
    using Settings = functions::TargetLossSettings;
    const auto add = [](const char* name, Settings (*read)(ConfigSection&), const char* doc) {
      losses().add(
          name, [read](ConfigSection& config) { return std::make_unique<OfTargets>(read(config)); },
          doc);
    };
    add(
        "cross_entropy",
        [](ConfigSection& config) {
          return Settings{
              .kind = LossKind::kCrossEntropy,
              .label_smoothing = config.number("label_smoothing", 0.0, Range::half_open(0.0, 1.0),
                                               "share of the target spread over all classes")};
        },
        "-Σ_c t_c log p_c, p = softmax(x), mean over samples; t is smoothed by `label_smoothing`");
    add(
        "focal",
        [](ConfigSection& config) {
          return Settings{
              .kind = LossKind::kFocal,
              .parameter = config.number(
                  "gamma", 2.0, Range::closed(0.0, 100.0),
                  "power of 1 - p; the larger, the less what is learnt counts; 0: cross_entropy")};
        },
        "-Σ_c t_c (1 - p_c)^γ log p_c, γ = `gamma`, p = softmax(x), mean over samples (Lin et al. "
        "2017, but no sigmoids): samples that are learnt already count less");
    add(
        "bce_with_logits", [](ConfigSection&) { return Settings{.kind = LossKind::kLogistic}; },
        "-t log σ(x) - (1 - t) log(1 - σ(x)), mean over all outputs");
    add(
        "mse", [](ConfigSection&) { return Settings{.kind = LossKind::kSquared}; },
        "(x - t)², mean over all outputs");
    add(
        "l1", [](ConfigSection&) { return Settings{.kind = LossKind::kAbsolute}; },
        "|x - t|, whose gradient is 0 where x = t, mean over all outputs");
    add(
        "huber",
        [](ConfigSection& config) {
          return Settings{.kind = LossKind::kHuber,
                          .parameter = config.number(
                              "delta", 1.0, Range::positive(),
                              "up to this difference the loss is quadratic, beyond it linear")};
        },
        "(x - t)²/2 up to |x - t| = δ = `delta`, then δ(|x - t| - δ/2), mean over all outputs");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
