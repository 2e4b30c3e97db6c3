#include "core/autograd.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/operations/map.h"
#include "core/text.h"
#include "core/trace.h"

namespace starling {

namespace {

bool fork_wanted() {
  const char* wanted = std::getenv("STARLING_FORK");
  const std::string text = wanted ? wanted : "";
  if (!text.empty() && text != "0" && text != "1")
    fail(ExitCode::kUsage, "config", "STARLING_FORK is '{}' in the environment; use 0 or 1", text);
  return text != "0";
}

bool among(const std::vector<Parameter*>& parameters, const Parameter& parameter) {
  return std::find(parameters.begin(), parameters.end(), &parameter) != parameters.end();
}

}  // namespace

namespace detail {

void GradSlot::add(Tensor term) {
  if (static_cast<int>(terms.size()) < max_terms) {
    terms.push_back(std::move(term));
    return;
  }
  // Sum into a term that nobody else holds; a shared one (an addition hands one tensor to both
  // inputs) must stay as it is.
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

const std::shared_ptr<detail::GradSlot>& Gradients::slot(int i) const {
  if (i < 0 || static_cast<std::size_t>(i) >= inputs_.size())
    fail(ExitCode::kUsage, "gradient", "input {} is asked for, of {}", i, inputs_.size());
  return inputs_[static_cast<std::size_t>(i)];
}

Parameter& Gradients::parameter_at(int j) const {
  if (j < 0 || static_cast<std::size_t>(j) >= parameters_.size())
    fail(ExitCode::kUsage, "gradient", "parameter {} is asked for, of {}", j, parameters_.size());
  return *parameters_[static_cast<std::size_t>(j)];
}

void Gradients::set(int i, Tensor gradient) {
  const auto& of = slot(i);
  if (!gradient) fail(ExitCode::kUsage, "gradient", "that of input {} is no tensor", i);
  if (!of) return;
  if (gradient.shape() != of->shape || gradient.dtype() != of->dtype) {
    fail(ExitCode::kUsage, "gradient",
         "that of input {} is {} {}, and the input is {} {}; they must be alike", i,
         gradient.shape().text(), name_of(gradient.dtype()), of->shape.text(), name_of(of->dtype));
  }
  of->add(std::move(gradient));
}

Gradients::Target Gradients::parameter(int j) {
  Parameter& parameter = parameter_at(j);
  if (!parameter.trainable) return {};
  require(static_cast<bool>(parameter.grad), "autograd", "parameter {} has no gradient memory",
          parameter.name);
  while (tape_->fork_of(parameter)) tape_->join_oldest();  // an earlier use of the parameter
  Tape::Use& use = tape_->use(parameter);
  Target target{parameter.grad, use.written};
  use.written = true;
  return target;
}

bool Gradients::forks(std::size_t bytes) const { return tape_->forks(bytes); }

void Gradients::beside(const std::function<void()>& work, std::vector<Tensor> keep) {
  while (tape_->forks_.size() >= Tape::kMostForks) tape_->join_oldest();
  tape_->forked_ = true;  // whatever comes of it
  const Event ready = backend_->record();
  const StreamScope scope(*backend_, StreamKind::kUpload);
  backend_->wait(ready);
  work();
  tape_->forks_.push_back({parameters_, {}, backend_->record(), std::move(keep)});
}

Tape::Tape(Backend& backend) : backend_(&backend), may_fork_(fork_wanted()) {}

bool Tape::forks(std::size_t bytes) const {
  return may_fork_ && bytes <= kForkBytes && backend_->capturing() &&
         backend_->stream() == StreamKind::kCompute;
}

Tape::Fork* Tape::fork_of(const Parameter& parameter) {
  const auto it = std::find_if(forks_.begin(), forks_.end(),
                               [&](const Fork& fork) { return among(fork.parameters, parameter); });
  return it == forks_.end() ? nullptr : &*it;
}

/// Joins the oldest fork. What it kept can be used again by work that the compute stream is told
/// from here on: memory comes from that stream.
void Tape::join_oldest() {
  backend_->wait(forks_.front().done);
  const Fork fork = std::move(forks_.front());
  forks_.pop_front();
  for (const Parameter* parameter : fork.ready) report(use(*parameter));
}

Variable Tape::leaf(Tensor value) {
  Variable variable(std::move(value));
  variable.slot_ = std::make_shared<detail::GradSlot>();
  variable.slot_->shape = variable.shape();
  variable.slot_->dtype = variable.dtype();
  return variable;
}

Tensor Tape::gradient(const Variable& leaf) {
  if (!leaf.slot_ || leaf.slot_->terms.empty()) return {};
  return leaf.slot_->terms.front();
}

Tape::Use& Tape::use(const Parameter& parameter) {
  require(parameter.index >= 0, "autograd", "parameter {} does not belong to a built model",
          parameter.name);
  const auto index = static_cast<std::size_t>(parameter.index);
  if (index >= uses_.size()) uses_.resize(index + 1);
  return uses_[index];
}

Variable Tape::record(std::string_view name, Tensor output, const std::vector<Variable>& inputs,
                      const std::vector<Parameter*>& parameters, BackwardFunction backward,
                      int max_terms) {
  Variable result(std::move(output));
  bool wanted = false;
  for (const Variable& input : inputs) wanted |= input.requires_grad();
  for (const Parameter* parameter : parameters) wanted |= parameter->trainable;
  if (!wanted) return result;
  result.slot_ = std::make_shared<detail::GradSlot>();
  result.slot_->max_terms = max_terms;
  result.slot_->shape = result.shape();
  result.slot_->dtype = result.dtype();
  Node node{name, layer_, result.slot_, {}, parameters, std::move(backward)};
  node.inputs.reserve(inputs.size());
  for (const Variable& input : inputs) {
    node.inputs.push_back(input.slot_);
  }
  for (const Parameter* parameter : parameters) {
    if (parameter->trainable) ++use(*parameter).remaining;
  }
  nodes_.push_back(std::move(node));
  return result;
}

void Tape::leave(Node& node, bool report) {
  for (Parameter* parameter : node.parameters) {
    if (!parameter->trainable) continue;
    Use& parameter_use = use(*parameter);
    parameter_use.parameter = parameter;
    if (--parameter_use.remaining > 0 || !parameter_use.written || !report) continue;
    if (Fork* fork = fork_of(*parameter)) {
      fork->ready.push_back(parameter);
    } else {
      this->report(parameter_use);
    }
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
  // 1 lies in the same memory in every pass, written once: whoever would write over it sees that it
  // is not the only holder.
  const bool kept = seed == 1.0 && one_ && one_.dtype() == loss.dtype();
  Tensor start = kept ? one_.reshaped(loss.shape()) : Tensor(*backend_, loss.shape(), loss.dtype());
  if (!kept) backend_->fill(start, seed);
  if (seed == 1.0 && !backend_->capturing()) one_ = start;
  loss.slot_->terms.clear();
  loss.slot_->terms.push_back(std::move(start));

  while (!nodes_.empty()) {
    Node node = std::move(nodes_.back());
    nodes_.pop_back();
    if (!node.output->terms.empty()) {  // otherwise the loss does not depend on this node
      const TraceSpan span("backward", node.name);
      Gradients gradients;
      gradients.backend_ = backend_;
      gradients.tape_ = this;
      gradients.output_is_one_ = seed == 1.0 && node.output == loss.slot_;
      gradients.terms_ = std::move(node.output->terms);
      node.output->terms.clear();
      gradients.inputs_ = std::move(node.inputs);
      gradients.parameters_ = node.parameters;
      const auto where = [&] {
        return fmt::format("{} (backward of {})", shown(node.layer), node.name);
      };
      try {
        node.backward(gradients);
      } catch (const Error& error) {
        // Errors of a layer's own code: only it asks a tensor for what it has not, and hands
        // gradients over.
        if (error.parts().component != "tensor" && error.parts().component != "gradient") throw;
        throw told_by("layer", where(), error);
      } catch (...) {
        detail::rethrow_named("layer", where());
      }
      if (stopped_at_.empty() &&
          std::any_of(gradients.inputs_.begin(), gradients.inputs_.end(),
                      [](const auto& input) { return input && input->terms.empty(); }))
        stopped_at_ = where();
      if (gradient_observer_) show_gradients(node, gradients);
    }
    node.backward = nullptr;  // frees the saved tensors before the observer starts an update
    leave(node, report);
  }
  while (!forks_.empty()) join_oldest();
  // A parameter that only an earlier micro-batch of the group used is complete as well.
  for (std::size_t i = 0; report && i < uses_.size(); ++i) {
    if (uses_[i].written && !uses_[i].reported) this->report(uses_[i]);
  }
  clear();
}

void Tape::show_gradients(const Node& node, const Gradients& gradients) const {
  for (const auto& slot : gradients.inputs_) {
    if (slot && !slot->terms.empty())
      gradient_observer_(node.layer, "its input", slot->terms.back());
  }
  for (const Parameter* parameter : node.parameters) {
    if (parameter->trainable) gradient_observer_(node.layer, parameter->name, parameter->grad);
  }
}

void Tape::clear() {
  nodes_.clear();
  forks_.clear();
  for (Use& parameter_use : uses_) parameter_use.remaining = 0;
}

}  // namespace starling
