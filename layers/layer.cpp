#include "layers/layer.h"

#include <unordered_set>

#include "core/backend.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/random.h"
#include "core/trace.h"

namespace starling {

namespace {

/// Most elements of one tensor: more is a slip of the pen in a config; below it, element counts
/// cannot overflow.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

std::string join(const std::string& prefix, const std::string& name) {
  if (prefix.empty() || name.empty()) return prefix + name;
  return prefix + "." + name;
}

/// Images may be of another size than the layer was set up for: what a layer computes follows the
/// image that it is given, and a layer that cannot follow takes vectors, whose length must be
/// right.
bool fits(const Shape& sample, const Shape& declared) {
  return sample == declared ||
         (sample.rank() == 3 && declared.rank() == 3 && sample[2] == declared[2]);
}

std::string shown(const std::string& name) { return name.empty() ? "model" : name; }

/// Refuses empty and absurd shapes, whose element count would overflow.
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

template <class T>
void copy_as(const std::vector<double>& numbers, const Tensor& to) {
  std::vector<T> converted(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if constexpr (std::is_same_v<T, double>) {
      converted[i] = numbers[i];
    } else {
      converted[i] = T(static_cast<float>(numbers[i]));
    }
  }
  to.backend().copy_from_host(converted.data(), to);
}

void allocate_parameter(Parameter& parameter, Backend& backend, DType dtype, DType compute) {
  parameter.value = Tensor(backend, parameter.shape, dtype);
  parameter.low = parameter.product && is_low_precision(compute)
                      ? Tensor(backend, parameter.shape, compute)
                      : Tensor();
}

/// Draws by memory order: the distribution does not depend on the layout.
void write_initial(const Tensor& to, const Init& init, std::uint64_t seed, std::uint32_t tensor,
                   const std::string& name) {
  require(static_cast<bool>(to), "model", "{} has no memory to be initialised", name);
  if (to.backend().device() == DeviceType::kMeta) return;
  if (init.kind == Init::Kind::kConstant) {
    to.backend().fill(to, init.a);
    return;
  }
  std::vector<double> numbers(static_cast<std::size_t>(to.elements()));
  fill_random(init, seed, tensor, to.elements(), numbers.data());
  switch (to.dtype()) {
    case DType::kFloat32: return copy_as<float>(numbers, to);
    case DType::kFloat64: return copy_as<double>(numbers, to);
    case DType::kBFloat16: return copy_as<BFloat16>(numbers, to);
    case DType::kFloat16: return copy_as<Float16>(numbers, to);
    case DType::kInt64:
    case DType::kInt32:
    case DType::kUInt8: break;
  }
  fail(ExitCode::kInternal, "model", "{}: random initial values for a {} tensor", name,
       name_of(to.dtype()));
}

}  // namespace

Shape Layer::setup(const Shape& input, std::string name) {
  require(!built_, "layer", "{} was set up twice", shown(name));
  built_ = true;
  name_ = std::move(name);
  check_size(input, shown(name_), "the input");
  input_ = input;
  output_ = named("layer", shown(name_), [&] { return build(input); });
  check_size(output_, shown(name_), "the output");
  return output_;
}

void Layer::check_input(const Variable& x) const {
  require(built_, "layer", "{} was used before it was set up", shown(name_));
  require(x.has_value(), "layer", "{}: the input holds no value", shown(name_));
  require(x.shape().rank() > 0 && fits(x.shape().without_batch(), input_), "layer",
          "{}: an input of {}, but batches of {} were declared", shown(name_), x.shape().text(),
          input_.text());
  require(is_floating(x.dtype()), "layer", "{}: an input of type {}, but floating point is needed",
          shown(name_), name_of(x.dtype()));
  for (const Parameter& parameter : parameters_) {
    require(static_cast<bool>(parameter.value), "layer", "{} has no memory", parameter.name);
    require(!parameter.is_weight() || parameter.operand().dtype() == x.dtype(), "layer",
            "{} is {}, but its input is {}{}", parameter.name, name_of(parameter.operand().dtype()),
            name_of(x.dtype()),
            !parameter.product && is_low_precision(x.dtype())
                ? "; set its `product` and read it by operand()"
                : "");
  }
  for (const ModelBuffer& buffer : buffers_)
    require(static_cast<bool>(buffer.value), "layer", "{} has no memory", buffer.name);
}

Variable Layer::forward(const Variable& x, Pass& pass) {
  return shell(x, pass, [&] { return compute(x, pass); });
}

Variable Layer::shell(const Variable& x, Pass& pass, const std::function<Variable()>& body) const {
  check_input(x);
  const TraceSpan span("forward", name_);
  const Tape::Scope scope(pass.tape, name_);
  try {
    Variable y = named("layer", shown(name_), body);
    check_output(x, y);
    if (pass.layer_observer) pass.layer_observer(shown(name_), x, y);
    return y;
  } catch (const Error& error) {
    // The innermost layer puts its name to what a backend says.
    if (error.parts().component == "layer" || error.parts().component == "numbers") throw;
    throw told_by("layer", shown(name_), error);
  }
}

/// Checks what build() has promised, wherever the input is what it was told of.
void Layer::check_output(const Variable& x, const Variable& y) const {
  if (!y.has_value())
    fail(ExitCode::kUsage, "layer", {.key = shown(name_)}, "the output holds no value");
  const Shape& is = y.shape();
  const bool follows =
      x.shape().without_batch() != input_ || (is.rank() > 0 && is.without_batch() == output_);
  if (is.rank() > 0 && is[0] == x.shape()[0] && follows && y.dtype() == x.dtype()) return;
  fail(ExitCode::kUsage, "layer", {.key = shown(name_)},
       "the output is {} {}, and build() said {} {}; compute() must give that", is.text(),
       name_of(y.dtype()), output_.with_batch(x.shape()[0]).text(), name_of(x.dtype()));
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

std::int64_t Layer::first_images() const {
  std::int64_t most = wanted_images();
  for (const auto& child : children_) most = std::max(most, child->first_images());
  return most;
}

void Layer::begin(const FirstImages& images) {
  for (const auto& child : children_) child->begin(images);
  named("layer", shown(name_), [&] { begin_values(images); });
}

void Layer::change_values(Parameter& parameter,
                          const std::function<void(std::vector<double>&)>& change) {
  const Tensor& value = parameter.value;
  if (value.backend().device() == DeviceType::kMeta) return;
  const auto of = [&]<class T>(T) {
    std::vector<T> stored(static_cast<std::size_t>(value.elements()));
    value.backend().copy_to_host(value, stored.data());
    std::vector<double> numbers(stored.begin(), stored.end());
    change(numbers);
    copy_as<T>(numbers, value);
  };
  if (value.dtype() == DType::kFloat64) return of(double{});
  require(value.dtype() == DType::kFloat32, "layer", "{} is {}, and parameters are fp32 or fp64",
          parameter.name, name_of(value.dtype()));
  of(float{});
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

void Layer::adopt(const std::string& name, std::unique_ptr<Layer> child, const Shape& input) {
  if (!child)
    fail(ExitCode::kUsage, "layer", {.key = shown(name_)},
         "its child '{}' is null; add_child() needs a layer", name);
  child->setup(input, join(name_, name));
  children_.push_back(std::move(child));
}

Model::Model(std::unique_ptr<Layer> root, const Shape& input) : root_(std::move(root)) {
  root_->setup(input, "");
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

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter* parameter : parameters_) {
    if (parameter->trainable) count += parameter->shape.elements();
  }
  return count;
}

void Model::allocate(Backend& backend, DType dtype, DType compute) {
  for (Parameter* parameter : parameters_) {
    allocate_parameter(*parameter, backend, dtype, compute);
    parameter->grad = parameter->trainable ? Tensor(backend, parameter->shape, dtype) : Tensor();
  }
  allocate_buffers(backend, dtype);
}

void Model::allocate_buffers(Backend& backend, DType dtype) {
  for (ModelBuffer* buffer : buffers_) {
    buffer->value =
        Tensor(backend, buffer->shape, is_floating(buffer->dtype) ? dtype : buffer->dtype);
  }
}

void Model::allocate_frozen(Backend& backend, DType dtype, DType compute) {
  for (Parameter* parameter : parameters_) {
    if (!parameter->trainable) allocate_parameter(*parameter, backend, dtype, compute);
  }
}

void Model::refresh_low() {
  for (const Parameter* parameter : parameters_) {
    if (parameter->low) parameter->low.backend().cast({.x = parameter->value, .y = parameter->low});
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

void Model::initialise(std::uint64_t seed, const FirstImages& images) {
  std::uint32_t tensor = 0;
  for (const Parameter* parameter : parameters_)
    write_initial(parameter->value, parameter->init, seed, tensor++, parameter->name);
  for (const ModelBuffer* buffer : buffers_)
    write_initial(buffer->value, buffer->init, seed, tensor++, buffer->name);
  root_->begin(images);
}

}  // namespace starling
