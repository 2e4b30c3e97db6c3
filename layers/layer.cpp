#include "layers/layer.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <unordered_set>

#include "core/backend.h"
#include "core/dispatch.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/random.h"
#include "core/trace.h"
#include "layers/functions.h"
#include "layers/parameter_reads.h"

namespace starling {

namespace {

/// Limit on the elements of a tensor: larger ones are mistakes in a config, and element counts
/// cannot overflow below it.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

std::string join(const std::string& prefix, const std::string& name) {
  if (prefix.empty() || name.empty()) return prefix + name;
  return prefix + "." + name;
}

/// Whether a value's shape is supported. Samples may have another size than at setup. Only the last
/// dimension of floating-point values must be equal, since weights depend on it.
bool fits(const Variable& x, const Shape& declared) {
  const int rank = declared.rank();
  return x.shape().rank() == rank + 1 &&
         (rank == 0 || !is_floating(x.dtype()) || x.shape().back() == declared.back());
}

std::string shown(const std::string& name) { return name.empty() ? "model" : name; }

/// Rejects empty shapes, and shapes so large that their element count would overflow.
void check_size(const Shape& shape, std::string_view owner, std::string_view what) {
  std::int64_t product = 1;
  for (std::int64_t size : shape.sizes()) {
    if (size < 1 || __builtin_mul_overflow(product, size, &product) || product > kMaxElements) {
      fail(ExitCode::kUsage, "layer",
           "{}: {} would be {}, of which no dimension may be 0 and which may have 2^40 elements at "
           "most",
           owner, what, shape.text());
    }
  }
}

/// Adds a parameter or buffer to those of a layer.
template <class T>
T& declare(std::deque<T>& to, const std::string& layer, const std::string& name, const Shape& shape,
           Init init) {
  check_size(shape, shown(layer), name);
  T& tensor = to.emplace_back();
  tensor.name = join(layer, name);
  tensor.shape = shape;
  tensor.init = init;
  return tensor;
}

/// A layer's own tensors, then those `of` its children.
template <class T>
std::vector<T*> collect(std::deque<T>& own, const std::vector<std::unique_ptr<Layer>>& children,
                        std::vector<T*> (Layer::*of)()) {
  std::vector<T*> result;
  for (T& tensor : own) result.push_back(&tensor);
  for (const auto& child : children) {
    for (T* tensor : ((*child).*of)()) result.push_back(tensor);
  }
  return result;
}

/// Converts to the tensor's format.
void write_numbers(const std::vector<double>& numbers, const Tensor& to) {
  dispatch_floating(to.dtype(), [&](auto kind) {
    using T = decltype(kind);
    using Single = std::conditional_t<std::is_same_v<T, double>, double, float>;
    std::vector<T> converted(numbers.size());
    std::transform(numbers.begin(), numbers.end(), converted.begin(),
                   [](double number) { return T(static_cast<Single>(number)); });
    to.backend().copy_from_host(converted.data(), to);
  });
}

using AllocateTensor = std::function<Tensor(const Shape&, DType)>;

void allocate_parameter(Parameter& parameter, DType dtype, DType compute,
                        const AllocateTensor& allocate) {
  const bool low = is_low_precision(compute);
  // A base is never updated, so that its matrices can be in the format of the products
  const bool low_alone = low && parameter.in == Parameter::In::kBase && parameter.is_weight();
  parameter.value = allocate(parameter.shape, low_alone ? compute : dtype);
  parameter.low = low && !low_alone ? allocate(parameter.shape, compute) : Tensor();
}

/// Random numbers are assigned in memory order, since the distribution does not depend on the
/// layout.
void write_initial(const Tensor& to, const Init& init, std::uint64_t seed, std::uint32_t tensor,
                   const std::string& name) {
  require(static_cast<bool>(to), "model", "{} has no memory to be initialised", name);
  if (to.backend().device() == DeviceType::kMeta) return;
  if (init.kind == Init::Kind::kConstant) {
    to.backend().fill(to, init.a);
    return;
  }
  require(is_floating(to.dtype()), "model", "{}: random initial values for a {} tensor", name,
          name_of(to.dtype()));
  // In parts, to limit the memory for fp64.
  constexpr std::int64_t kPart = std::int64_t{1} << 18;
  std::vector<double> numbers;
  for (std::int64_t first = 0; first < to.elements(); first += kPart) {
    const std::int64_t count = std::min(kPart, to.elements() - first);
    numbers.resize(static_cast<std::size_t>(count));
    fill_random(init, seed, tensor, count, numbers.data(), first);
    write_numbers(numbers, to.slice(first, Shape{count}));
  }
}

}  // namespace

Shape Layer::setup(Shapes inputs, std::string name) {
  require(!built_, "layer", "{} was set up twice", shown(name));
  built_ = true;
  name_ = std::move(name);
  for (const Shape& input : inputs) check_size(input, shown(name_), "the input");
  inputs_.assign(inputs.begin(), inputs.end());
  output_ = named("layer", shown(name_), [&] { return build_several(inputs); });
  check_size(output_, shown(name_), "the output");
  return output_;
}

Shape Layer::build_several(Shapes inputs) {
  if (inputs.size() != 1)
    fail(ExitCode::kUsage, "layer", {.key = shown(name_)}, "it takes one value, and {} were given",
         inputs.size());
  return build(inputs[0]);
}
Variable Layer::compute_several(Values inputs, Pass& pass) { return compute(inputs[0], pass); }

Shape Layer::build(const Shape&) {
  fail(ExitCode::kInternal, "layer", {.key = shown(name_)},
       "has no build(); a layer has one, or build_several()");
}
Variable Layer::compute(const Variable&, Pass&) {
  fail(ExitCode::kInternal, "layer", {.key = shown(name_)},
       "has no compute(); a layer has one, or compute_several()");
}

void Layer::check_inputs(Values inputs) const {
  require(built_, "layer", "{} was used before it was set up", shown(name_));
  require(inputs.size() == inputs_.size(), "layer", "{}: {} values, but {} were declared",
          shown(name_), inputs.size(), inputs_.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Variable& x = inputs[i];
    require(x.has_value(), "layer", "{}: the input holds no value", shown(name_));
    require(fits(x, inputs_[i]), "layer", "{}: an input of {}, but batches of {} were declared",
            shown(name_), x.shape().text(), inputs_[i].text());
    require(x.shape()[0] == inputs[0].shape()[0], "layer", "{}: inputs of {} and {} samples",
            shown(name_), inputs[0].shape()[0], x.shape()[0]);
    for (const Parameter& parameter : parameters_) {
      require(static_cast<bool>(parameter.operand()), "layer", "{} has no memory", parameter.name);
      require(!is_floating(x.dtype()) || parameter.operand().dtype() == x.dtype(), "layer",
              "{} is {}, but its input is {}", parameter.name, name_of(parameter.operand().dtype()),
              name_of(x.dtype()));
    }
  }
  for (const ModelBuffer& buffer : buffers_)
    require(static_cast<bool>(buffer.value), "layer", "{} has no memory", buffer.name);
}

Variable Layer::forward(Values inputs, Pass& pass) {
  return shell(inputs, pass,
               [this](Values values, Pass& now) { return compute_several(values, now); });
}

/// The forward pass without a tape; the backward pass does it again with one.
Variable Layer::run_checkpointed(Values inputs, Pass& pass, const Body& body) {
  Pass again = pass;  // with the same random numbers
  again.recomputing = true;
  again.recompute = Pass::usual_recompute(pass.device);
  again.layer_observer = nullptr;
  std::vector<Tensor> values;
  for (const Variable& input : inputs) values.push_back(input.value());
  Pass plain = pass;
  plain.tape = nullptr;
  const Tensor y = body(std::vector<Variable>(values.begin(), values.end()), plain).value();
  pass.dropout_counter = plain.dropout_counter;
  // Do not sum the gradient's terms before the layer's last operation gets them.
  constexpr int kMostTerms = std::numeric_limits<int>::max();
  return pass.record(
      "checkpoint", y, {inputs.begin(), inputs.end()}, parameters(),
      [this, body, values = std::move(values), again](Gradients& g) mutable {
        g.recompute(std::move(values), [&](Values in) {
          const Tape::Scope scope(again.tape, name_);
          return body(in, again);
        });
      },
      kMostTerms);
}

Variable Layer::shell(Values inputs, Pass& pass, const Body& body) {
  check_inputs(inputs);
  if (ParameterReads* const reads = pass.find<ParameterReads>()) {
    for (const Parameter& parameter : parameters_) reads->before(parameter);
  }
  const TraceSpan span("forward", name_);
  const Tape::Scope scope(pass.tape, name_);
  try {
    const bool checkpoints = pass.tape && (block_ == Block::kAlways ||
                                           (block_ == Block::kWhereAsked && !pass.recomputing &&
                                            pass.recompute == Recompute::kBlock));
    Variable y = named("layer", shown(name_), [&] {
      return checkpoints ? run_checkpointed(inputs, pass, body) : body(inputs, pass);
    });
    check_output(inputs, y);
    if (pass.layer_observer) pass.layer_observer(shown(name_), inputs, y);
    return y;
  } catch (const Error& error) {
    // The innermost layer adds its name to a backend's error.
    if (error.parts().component == "layer" || error.parts().component == "numbers") throw;
    throw told_by("layer", shown(name_), error);
  }
}

/// Checks that the output has the shape that build() returned, if the inputs have the declared
/// shapes, and that floating-point values keep their format.
void Layer::check_output(Values inputs, const Variable& y) const {
  if (!y.has_value())
    fail(ExitCode::kUsage, "layer", {.key = shown(name_)}, "the output holds no value");
  const Shape& is = y.shape();
  const std::int64_t samples = inputs[0].shape()[0];
  DType dtype = y.dtype();
  bool follows = is.rank() > 0 && is.without_batch() == output_;
  for (std::size_t i = inputs.size(); i-- > 0;) {
    if (is_floating(inputs[i].dtype())) dtype = inputs[i].dtype();
    follows |= inputs[i].shape().without_batch() != inputs_[i];
  }
  if (is.rank() > 0 && is[0] == samples && follows && y.dtype() == dtype) return;
  fail(ExitCode::kUsage, "layer", {.key = shown(name_)},
       "the output is {} {}, and build() said {} {}; compute() must give that", is.text(),
       name_of(y.dtype()), output_.with_batch(samples).text(), name_of(dtype));
}

void Layer::for_each(const std::function<void(Layer&)>& visit) {
  for (const auto& child : children_) child->for_each(visit);
  visit(*this);
}

std::vector<Parameter*> Layer::parameters() {
  return collect(parameters_, children_, &Layer::parameters);
}

std::vector<ModelBuffer*> Layer::buffers() { return collect(buffers_, children_, &Layer::buffers); }

Parameter& Layer::add_parameter(const std::string& name, const Shape& shape, Init init,
                                TensorLayout layout) {
  Parameter& parameter = declare(parameters_, name_, name, shape, init);
  parameter.layout = layout;
  return parameter;
}

ModelBuffer& Layer::add_buffer(const std::string& name, const Shape& shape, Init init,
                               DType dtype) {
  ModelBuffer& buffer = declare(buffers_, name_, name, shape, init);
  buffer.dtype = dtype;
  return buffer;
}

std::int64_t Layer::first_samples() const {
  std::int64_t most = wanted_samples();
  for (const auto& child : children_) most = std::max(most, child->first_samples());
  return most;
}

void Layer::begin(const FirstSamples& samples) {
  for (const auto& child : children_) child->begin(samples);
  named("layer", shown(name_), [&] { begin_values(samples); });
}

void Layer::change_values(Parameter& parameter,
                          const std::function<void(std::vector<double>&)>& change) {
  const Tensor& value = parameter.value;
  if (value.backend().device() == DeviceType::kMeta) return;
  const Tensor wide = functions::in_format(value, DType::kFloat64, value.backend());
  std::vector<double> numbers(static_cast<std::size_t>(value.elements()));
  value.backend().copy_to_host(wide, numbers.data());
  change(numbers);
  write_numbers(numbers, value);
}

void Layer::bad_shape(const Shape& input, std::string_view needed) const {
  fail(ExitCode::kUsage, "layer", {.key = shown(name_)}, "an input of {}, but {} is needed",
       input.text(), needed);
}

std::optional<Error> Layer::unsupported(DType compute, DeviceType device) const {
  const auto refusal = [&](std::string_view verb, const auto& can, auto wanted,
                           std::string_view key) -> std::optional<Error> {
    if (std::find(can.begin(), can.end(), wanted) != can.end()) return std::nullopt;
    std::string list;
    for (const auto each : can)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", name_of(each));
    return Error(ExitCode::kUsage,
                 {"layer",
                  fmt::format("it {} {}, and {} was asked for", verb, list, name_of(wanted)),
                  fmt::format("set {} to one of these, or use another layer", key),
                  {.key = shown(name_)}});
  };
  const LayerSupport mine = support();
  std::optional<Error> error = refusal("computes in", mine.compute, compute, "precision");
  if (!error && device != DeviceType::kMeta)
    error = refusal("runs on", mine.devices, device, "device");
  for (auto child = children_.begin(); !error && child != children_.end(); ++child)
    error = (*child)->unsupported(compute, device);
  return error;
}

void Layer::adopt(const std::string& name, std::unique_ptr<Layer> child, Shapes inputs) {
  if (!child)
    fail(ExitCode::kUsage, "layer", {.key = shown(name_)},
         "its child '{}' is null; add_child() needs a layer", name);
  child->setup(inputs, join(name_, name));
  children_.push_back(std::move(child));
}

Model::Model(std::unique_ptr<Layer> root, Shapes inputs) : root_(std::move(root)) {
  root_->setup(inputs, "");
  collect();
}

void Model::collect() {
  parameters_ = root_->parameters();
  buffers_ = root_->buffers();
  std::unordered_set<std::string> names;
  const auto check_unique = [&](const std::string& name) {
    if (!names.insert(name).second)
      fail(ExitCode::kUsage, "model", "two tensors are named {}; names must be unique", name);
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    check_unique(parameters_[i]->name);
    parameters_[i]->index = static_cast<int>(i);
  }
  for (const ModelBuffer* buffer : buffers_) check_unique(buffer->name);
}

namespace {

std::int64_t numbers_in(const std::vector<Parameter*>& parameters, bool trainable) {
  std::int64_t count = 0;
  for (const Parameter* parameter : parameters) {
    if (parameter->trainable == trainable) count += parameter->shape.elements();
  }
  return count;
}

}  // namespace

std::int64_t Model::parameter_count() const { return numbers_in(parameters_, true); }
std::int64_t Model::frozen_count() const { return numbers_in(parameters_, false); }

void Model::allocate(Backend& backend, DType dtype, DType compute) {
  for (Parameter* parameter : parameters_) {
    if (!parameter->trainable) continue;
    allocate_parameter(*parameter, dtype, compute, [&](const Shape& shape, DType type) {
      return Tensor(backend, shape, type);
    });
    parameter->grad = Tensor(backend, parameter->shape, dtype);
  }
  allocate_rest(backend, dtype, compute);
}

void Model::allocate_rest(Backend& backend, DType dtype, DType compute,
                          const AllocateTensor& base) {
  const AllocateTensor own = [&](const Shape& shape, DType type) {
    return Tensor(backend, shape, type);
  };
  for (Parameter* parameter : parameters_) {
    if (!parameter->trainable)
      allocate_parameter(*parameter, dtype, compute,
                         base && parameter->in == Parameter::In::kBase ? base : own);
  }
  for (ModelBuffer* buffer : buffers_) {
    buffer->value =
        Tensor(backend, buffer->shape, is_floating(buffer->dtype) ? dtype : buffer->dtype);
  }
}

bool Model::has_blocks() const {
  bool found = false;
  root_->for_each([&](Layer& layer) { found |= layer.is_block(); });
  return found;
}

void Model::refresh_low() {
  for (const Parameter* parameter : parameters_) {
    if (parameter->low && parameter->value)
      parameter->low.backend().cast({.x = parameter->value, .y = parameter->low});
  }
}

void Model::check_takes(const Shape& input) {
  if (input == input_shape()) return;
  allocate(meta_backend(), DType::kFloat32);
  std::string reason;
  try {
    Pass pass{meta_backend()};
    const Variable output =
        forward(Variable(Tensor(meta_backend(), input.with_batch(1), DType::kFloat32)), pass);
    if (output.shape().without_batch() != output_shape()) {
      reason = fmt::format("it gives {} for {}", output.shape().without_batch().text(),
                           output_shape().text());
    }
  } catch (const Error& error) {
    reason = error.what();
  }
  drop_memory();
  if (reason.empty()) return;
  fail(ExitCode::kUsage, "model",
       "was made for {} and does not take {} ({}); a model that ends in global pooling takes "
       "images of any size",
       input_shape().text(), input.text(), reason);
}

void Model::drop_memory() {
  for (Parameter* parameter : parameters_)
    parameter->value = parameter->grad = parameter->low = Tensor();
  for (ModelBuffer* buffer : buffers_) buffer->value = Tensor();
}

void Model::initialise(std::uint64_t seed, const FirstSamples& samples,
                       const std::function<bool(const Parameter&)>& draws) {
  std::uint32_t tensor = 0;
  for (const Parameter* parameter : parameters_) {
    const std::uint32_t number = tensor++;
    if (!draws || draws(*parameter))
      write_initial(parameter->value, parameter->init, seed, number, parameter->name);
  }
  for (const ModelBuffer* buffer : buffers_)
    write_initial(buffer->value, buffer->init, seed, tensor++, buffer->name);
  root_->begin(samples);
}

}  // namespace starling
