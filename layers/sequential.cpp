#include "layers/sequential.h"

#include <typeinfo>

#include "core/operations/pointwise.h"
#include "core/typed_section.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/linear.h"
#include "layers/stateless.h"

namespace starling {

namespace {

/// The layer as an L if that is its exact type: a fused call would bypass compute() of a derived
/// class.
template <class L>
L* exactly(Layer& layer) {
  return typeid(layer) == typeid(L) ? static_cast<L*>(&layer) : nullptr;
}

}  // namespace

void Sequential::add(Activation active) { add(std::make_unique<ActivationLayer>(active)); }

Shape Sequential::build(const Shape& input) {
  Shape shape = input;
  for (auto& [name, pending] : pending_) {
    Layer& layer = add_child(name, std::move(pending), shape);
    shape = layer.output_shape();
    const auto* activation = dynamic_cast<const ActivationLayer*>(&layer);
    if (activation && !steps_.empty() && steps_.back().takes(activation->kind())) {
      steps_.back().active = activation->kind();
      continue;
    }
    steps_.push_back(
        {&layer, exactly<BatchNorm>(layer), exactly<Residual>(layer), exactly<Linear>(layer)});
  }
  pending_.clear();
  return shape;
}

bool Sequential::Step::takes(Activation next) const {
  if (active != Activation::kNone) return false;
  return (next == Activation::kRelu && (batch_norm || residual || linear)) ||
         (next == Activation::kRelu6 && (batch_norm || residual));
}

Variable Sequential::Step::run(const Variable& x, Pass& pass) const {
  if (active == Activation::kNone) return layer->forward(x, pass);
  if (batch_norm) return batch_norm->forward_fused(x, active, {}, pass);
  return residual ? residual->forward_fused(x, active, pass) : linear->forward_relu(x, pass);
}

Variable Sequential::run(const Variable& x, std::size_t count, Pass& pass) const {
  Variable value = x;
  for (std::size_t i = 0; i < count; ++i) value = steps_[i].run(value, pass);
  return value;
}

Variable Sequential::compute(const Variable& x, Pass& pass) { return run(x, steps_.size(), pass); }

Variable Sequential::forward_residual(const Variable& x, Sequential* shortcut, Activation active,
                                      Pass& pass) {
  const bool fused =
      !steps_.empty() && steps_.back().batch_norm && steps_.back().active == Activation::kNone;
  const Variable value =
      shell(x, pass, [this, count = steps_.size() - (fused ? 1 : 0)](Values in, Pass& now) {
        return run(in[0], count, now);
      });
  const Variable other = shortcut ? shortcut->forward(x, pass) : x;
  if (fused) return steps_.back().batch_norm->forward_fused(value, active, other, pass);
  return functions::activation(functions::add(value, other, pass), active, pass);
}

Shape Residual::build(const Shape& input) {
  body_ = &add_child(body_name_, std::move(pending_body_), input);
  if (pending_shortcut_)
    shortcut_ = &add_child(shortcut_name_, std::move(pending_shortcut_), input);
  const Shape& other = shortcut_ ? shortcut_->output_shape() : input;
  if (body_->output_shape() != other) {
    fail(ExitCode::kUsage, "layer", {.key = name()},
         "layers give {} but the shortcut gives {}; they must agree", body_->output_shape().text(),
         other.text());
  }
  return other;
}

Variable Residual::compute(const Variable& x, Pass& pass) {
  return body_->forward_residual(x, shortcut_, Activation::kNone, pass);
}

Variable Residual::forward_fused(const Variable& x, Activation active, Pass& pass) {
  return shell(x, pass, [this, active](Values in, Pass& now) {
    return body_->forward_residual(in[0], shortcut_, active, now);
  });
}

std::unique_ptr<Sequential> read_layers(ConfigSection& section, const std::string& key,
                                        const char* sample, const std::string& doc) {
  auto result = std::make_unique<Sequential>();
  for (ConfigSection& item :
       section.sections(key, sample != nullptr, doc, false, sample ? sample : "")) {
    const std::string type = item.required_text("type", "which layer; its other keys depend on it");
    result->add(make_typed(layers(), type, item));
    item.finish();
  }
  return result;
}

void builtin::add_sequential(LayerRegistry& registry) {
  registry.add(
      "sequential",
      [](ConfigSection& section) {
        return read_layers(section, "layers", R"([{"type": "flatten"}])",
                           "the layers, in order, each {\"type\": …}");
      },
      "layers one after the other");
}

void builtin::add_sequential_model(ModelRegistry& registry) {
  registry.add(
      "sequential",
      [](ConfigSection& section, const ModelOutputs&) {
        return read_layers(section, "layers",
                           R"([{"type": "flatten"}, {"type": "linear", "out_features": 10}])",
                           "the layers, in order, each {\"type\": …}; the last gives num_classes "
                           "features");
      },
      "any chain of layers");
}

void builtin::add_residual(LayerRegistry& registry) {
  registry.add(
      "residual",
      [](ConfigSection& section) {
        auto body = read_layers(section, "layers", R"([{"type": "relu"}])",
                                "the layers whose output the shortcut is added to");
        const bool has_shortcut = section.has("shortcut");
        auto other = read_layers(section, "shortcut", nullptr,
                                 "the layers of the shortcut; none: the input itself is added");
        if (!has_shortcut) other = nullptr;
        return std::make_unique<Residual>(std::move(body), "layers", std::move(other), "shortcut");
      },
      "layers(x) + shortcut(x)");
}

}  // namespace starling
