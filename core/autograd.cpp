#include "core/autograd.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/operations/map.h"
#include "core/text.h"
#include "core/trace.h"

namespace starling {

namespace detail {

void GradientSlot::add(Tensor term) {
  if (static_cast<int>(terms.size()) < max_terms) {
    terms.push_back(std::move(term));
    return;
  }
  // Sum into a term without other references. A shared one must not change: an addition, for one,
  // passes the same tensor to both inputs.
  Backend& backend = term.backend();
  Tensor& last = terms.back();
  if (last.exclusive()) {
    backend.map({MapFunction::kAdd, last, term, last});
  } else if (term.exclusive()) {
    backend.map({MapFunction::kAdd, last, term, term});
    last = std::move(term);
  } else {
    Tensor sum(backend, term.shape(), term.dtype());
    backend.map({MapFunction::kAdd, last, term, sum});
    last = std::move(sum);
  }
}

}  // namespace detail

namespace {

/// items[i], or Error(kUsage) if the node has no such item.
template <class T>
T& at(std::vector<T>& items, int i, std::string_view what) {
  if (i < 0 || static_cast<std::size_t>(i) >= items.size())
    fail(ExitCode::kUsage, "gradient", "{} {} is asked for, of {}", what, i, items.size());
  return items[static_cast<std::size_t>(i)];
}

}  // namespace

Gradients::Gradients(Tape& tape, detail::Node& node, bool output_is_one)
    : tape_(&tape), backend_(&tape.backend()), node_(&node), output_is_one_(output_is_one) {}

bool Gradients::has(int i) const { return !at(node_->outputs, i, "output")->terms.empty(); }

bool Gradients::output_is_one() const {
  node_->read_output = true;
  return output_is_one_;
}

const std::vector<Tensor>& Gradients::terms(int i) const {
  node_->read_output = true;
  return at(node_->outputs, i, "output")->terms;
}

const Tensor& Gradients::output(int i) const {
  if (!has(i))
    fail(ExitCode::kUsage, "gradient", "output {} has none; ask has() before, or take it once", i);
  return terms(i).front();
}

std::vector<Tensor> Gradients::take_terms(int i) {
  node_->read_output = true;
  return std::exchange(at(node_->outputs, i, "output")->terms, {});
}

bool Gradients::wants(int i) const { return at(node_->inputs, i, "input") != nullptr; }

Tensor Gradients::take_input_term(int i) {
  const auto& of = at(node_->inputs, i, "input");
  if (!of || of->terms.empty()) return {};
  Tensor term = std::move(of->terms.back());
  of->terms.pop_back();
  return term;
}

void Gradients::set(int i, Tensor gradient) {
  const auto& of = at(node_->inputs, i, "input");
  if (!gradient) fail(ExitCode::kUsage, "gradient", "that of input {} is no tensor", i);
  if (!of) return;
  if (gradient.shape() != of->shape || gradient.dtype() != of->dtype) {
    fail(ExitCode::kUsage, "gradient",
         "that of input {} is {} {}, and the input is {} {}; they must be alike", i,
         gradient.shape().text(), name_of(gradient.dtype()), of->shape.text(), name_of(of->dtype));
  }
  node_->set_gradients = true;
  of->add(std::move(gradient));
}

Gradients::Target Gradients::parameter(int j, const std::shared_ptr<Tensor>& early) {
  Parameter* const parameter = at(node_->parameters, j, "parameter");
  if (!parameter || !parameter->trainable) return {};
  node_->set_gradients = true;
  tape_->allocate_gradient(*parameter);
  tape_->branches_.join(*parameter);  // an earlier use
  Tape::Use& use = tape_->use(*parameter);
  if (const auto first = std::exchange(use.early, nullptr); first && first != early) {
    *first = Tensor(*backend_, parameter->shape, parameter->grad.dtype());
    backend_->copy(parameter->grad, *first);
  }
  Target target{parameter->grad, use.written};
  use.written = true;
  return target;
}

bool Gradients::run_concurrently(const std::function<void()>& work, std::vector<Tensor> keep) {
  return tape_->branches_.issue(work, node_->parameters, std::move(keep));
}

void Gradients::recompute(std::vector<Tensor> values,
                          const std::function<Variable(std::span<const Variable> inputs)>& body) {
  std::vector<Tensor> terms = take_terms();
  std::vector<Variable> inputs;
  for (Tensor& value : values) {
    inputs.emplace_back(std::move(value));
    inputs.back().slot_ = at(node_->inputs, static_cast<int>(inputs.size()) - 1, "input");
  }
  const Variable y = body(inputs);
  if (y.value() && y.slot_)
    for (Tensor& term : terms) y.slot_->add(std::move(term));
  node_->recomputed = true;
}

Tape::Tape(Backend& backend)
    : backend_(&backend),
      branches_(backend, [this](Parameter& parameter) { report(use(parameter)); }) {}

Variable::Variable(Tensor value, int max_terms)
    : value_(std::move(value)), slot_(std::make_shared<detail::GradientSlot>()) {
  slot_->shape = shape();
  slot_->dtype = dtype();
  slot_->max_terms = max_terms;
}

Variable::Variable(std::shared_ptr<LazyValue> lazy)
    : lazy_(std::move(lazy)), lazy_shape_(lazy_->shape()) {}

DType Variable::dtype() const { return lazy_ ? lazy_->dtype() : value_.dtype(); }
bool Variable::requires_grad() const { return lazy_ ? lazy_->requires_grad() : slot_ != nullptr; }

bool Variable::same_as(const Variable& other) const {
  if (lazy_ || other.lazy_) return lazy_ == other.lazy_;
  return slot_ == other.slot_ && value_.same_as(other.value_);
}

void Variable::evaluate() const {
  const std::shared_ptr<LazyValue> lazy = std::exchange(lazy_, nullptr);
  const Variable& made = lazy->made();
  value_ = made.value_;
  slot_ = made.slot_;
  recomputed_ = made.recomputed_;
}

Variable Tape::leaf(Tensor value) { return {std::move(value), 1}; }

Tensor Tape::gradient(const Variable& leaf) {
  if (!leaf.slot_ || leaf.slot_->terms.empty()) return {};
  return leaf.slot_->terms.front();
}

void Variable::set_recompute(std::function<Tensor()> compute) {
  recomputed_ = std::make_shared<detail::Recomputed>(detail::Recomputed{std::move(compute), {}, 0});
}

Saved::Saved(const Variable& x) : value_(x.value()), recomputed_(x.recomputed_) {
  if (!recomputed_) return;
  value_ = Tensor();
  ++recomputed_->pending;
}

Tensor Saved::take() const {
  if (!recomputed_) return value_;
  if (!recomputed_->value) recomputed_->value = recomputed_->compute();
  return --recomputed_->pending > 0 ? recomputed_->value : std::exchange(recomputed_->value, {});
}

std::shared_ptr<Tensor> Tape::early_gradient(Parameter& parameter) {
  Use& of = use(parameter);
  if (of.early) return nullptr;
  allocate_gradient(parameter);
  return of.early = std::make_shared<Tensor>(parameter.grad);
}

void Tape::allocate_gradient(Parameter& parameter) {
  if (!parameter.grad && allocate_) allocate_(parameter);
  require(static_cast<bool>(parameter.grad), "autograd", "parameter {} has no gradient memory",
          parameter.name);
}

Tape::Use& Tape::use(const Parameter& parameter) {
  require(parameter.index >= 0, "autograd", "parameter {} does not belong to a built model",
          parameter.name);
  const auto index = static_cast<std::size_t>(parameter.index);
  if (index >= uses_.size()) uses_.resize(index + 1);
  return uses_[index];
}

Variable Tape::record(std::string_view name, Tensor output, const std::vector<Variable>& inputs,
                      std::vector<Parameter*> parameters, BackwardFunction backward,
                      int max_terms) {
  detail::Node* const node = add(name, inputs, std::move(parameters), std::move(backward));
  if (!node) return Variable(std::move(output));
  Variable result(std::move(output), max_terms);
  node->outputs.push_back(result.slot_);
  return result;
}

std::vector<Variable> Tape::record(std::string_view name, std::vector<Tensor> outputs,
                                   const std::vector<Variable>& inputs,
                                   std::vector<Parameter*> parameters, BackwardFunction backward) {
  require(!outputs.empty(), "autograd", "{} has no output", name);
  detail::Node* const node = add(name, inputs, std::move(parameters), std::move(backward));
  std::vector<Variable> results;
  for (Tensor& output : outputs) {
    results.push_back(node ? Variable(std::move(output), 1) : Variable(std::move(output)));
    if (node) node->outputs.push_back(results.back().slot_);
  }
  return results;
}

detail::Node* Tape::add(std::string_view name, const std::vector<Variable>& inputs,
                        std::vector<Parameter*> parameters, BackwardFunction backward) {
  bool wanted = false;
  for (const Variable& input : inputs) {
    if (input.lazy()) input.evaluate();  // which may record a node before this one
    wanted |= input.requires_grad();
  }
  for (Parameter* parameter : parameters) {
    if (!parameter || !parameter->trainable) continue;
    wanted = true;
    ++use(*parameter).remaining;
  }
  if (!wanted) return nullptr;
  detail::Node& node = nodes_.emplace_back();
  node = {name, layer_, {}, {}, std::move(parameters), std::move(backward)};
  node.inputs.reserve(inputs.size());
  for (const Variable& input : inputs) node.inputs.push_back(input.slot_);
  return &node;
}

void Tape::release(const detail::Node& node, bool report) {
  for (Parameter* parameter : node.parameters) {
    if (!parameter || !parameter->trainable) continue;
    Use& parameter_use = use(*parameter);
    parameter_use.parameter = parameter;
    if (--parameter_use.remaining > 0 || !parameter_use.written || !report) continue;
    if (!branches_.delays(*parameter)) this->report(parameter_use);
  }
}

void Tape::report(Use& parameter_use) {
  parameter_use.reported = true;
  if (observer_) observer_(*parameter_use.parameter);
}

void Tape::backward(const Variable& loss, double seed, bool accumulate, bool report) {
  require(loss.requires_grad(), "autograd",
          "backward was called on a value that no trainable parameter takes part in");
  require(loss.value().elements() == 1, "autograd", "backward starts from a scalar, not from {}",
          loss.shape().text());
  for (Use& parameter_use : uses_) {
    parameter_use.reported = false;
    if (!accumulate) parameter_use.written = false;
  }
  // The usual seed is written once and shared by all passes. As it is not exclusive(), no backward
  // function writes over it.
  const bool reused = seed == 1.0 && one_ && one_.dtype() == loss.dtype();
  Tensor start =
      reused ? one_.reshaped(loss.shape()) : Tensor(*backend_, loss.shape(), loss.dtype());
  if (!reused) backend_->fill(start, seed);
  if (seed == 1.0 && !backend_->capturing()) one_ = start;
  loss.slot_->terms.clear();
  loss.slot_->terms.push_back(std::move(start));

  while (!nodes_.empty()) {
    detail::Node node = std::move(nodes_.back());
    nodes_.pop_back();
    run(node, seed == 1.0 && node.outputs.front() == loss.slot_);
    node.backward = nullptr;  // frees the saved tensors before the observer starts an update
    release(node, report);
  }
  branches_.join_all();
  // Parameters that only an earlier micro-batch of the update used are complete as well.
  for (std::size_t i = 0; report && i < uses_.size(); ++i) {
    if (uses_[i].written && !uses_[i].reported) this->report(uses_[i]);
  }
  clear();
}

void Tape::run(detail::Node& node, bool output_is_one) {
  const auto has = [](const auto& output) { return !output->terms.empty(); };
  // The loss does not depend on this node.
  if (std::none_of(node.outputs.begin(), node.outputs.end(), has)) return;
  const TraceSpan span("backward", node.name);
  Gradients gradients(*this, node, output_is_one);
  const auto where = [&] {
    constexpr std::size_t kLongest = 200;  // with a plug-in's path
    return fmt::format("{} (backward of {})", shown(node.layer, kLongest), node.name);
  };
  try {
    node.backward(gradients);
    if (node.set_gradients && !node.read_output)
      fail(ExitCode::kUsage, "gradient",
           "that of the output is not looked at; by it, Gradients::output(), what is handed on is "
           "to be multiplied");
  } catch (const Error& error) {
    // These two components report wrong use by the layer's code: name the layer.
    if (error.parts().component != "tensor" && error.parts().component != "gradient") throw;
    throw told_by("layer", where(), error);
  } catch (...) {
    detail::rethrow_named("layer", where());
  }
  for (const auto& output : node.outputs) output->terms.clear();
  if (node.recomputed) return;
  if (stopped_at_.empty() &&
      std::any_of(node.inputs.begin(), node.inputs.end(),
                  [](const auto& input) { return input && input->terms.empty(); }))
    stopped_at_ = where();
  if (gradient_observer_) show_gradients(node);
}

void Tape::show_gradients(const detail::Node& node) const {
  for (const auto& slot : node.inputs) {
    if (slot && !slot->terms.empty())
      gradient_observer_(node.layer, "its input", slot->terms.back());
  }
  for (const Parameter* parameter : node.parameters) {
    if (parameter && parameter->trainable)
      gradient_observer_(node.layer, parameter->name, parameter->grad);
  }
}

void Tape::clear() {
  nodes_.clear();
  branches_.clear();
  for (Use& parameter_use : uses_) {
    parameter_use.remaining = 0;
    parameter_use.early = nullptr;
  }
}

}  // namespace starling
