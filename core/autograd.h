#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/branches.h"
#include "core/parameter.h"
#include "core/tensor.h"

namespace starling {

class Tape;

namespace detail {
struct Node;
/// Where the gradient of one value gathers until the node that made the value runs.
struct GradSlot {
  std::vector<Tensor> terms;  ///< their sum is the gradient
  Shape shape = {};           ///< the value's, and so the gradient's
  DType dtype = DType::kFloat32;
  int max_terms = 1;  ///< how many terms the node that made the value takes unsummed
  void add(Tensor term);
};
/// How a value is made again that needs not be kept between the passes.
struct Remake {
  std::function<Tensor()> make;
  Tensor made;     ///< from the first that takes it to the last
  int wanted = 0;  ///< by nodes that have not taken it yet
};
}  // namespace detail

class LazyValue;

/// A value that a pass computes; on a tape it can have a gradient. Cheap to copy.
class Variable {
 public:
  Variable() = default;
  explicit Variable(Tensor value) : value_(std::move(value)) {}
  /// One that is computed when its value is first read, or an operation that reads it is recorded.
  explicit Variable(std::shared_ptr<LazyValue> lazy);
  const Tensor& value() const {
    if (lazy_) settle();
    return value_;
  }
  bool has_value() const { return lazy_ || value_; }
  const Shape& shape() const { return value_ ? value_.shape() : lazy_shape_; }
  DType dtype() const;
  bool requires_grad() const;
  /// What computes it; null where it has been read already, or was never lazy.
  const std::shared_ptr<LazyValue>& lazy() const { return lazy_; }
  /// True for two handles to one value of a pass.
  bool same_as(const Variable& other) const;
  /// `make` makes the same numbers again, from what is kept for the backward pass anyway: see
  /// Saved.
  void set_remake(std::function<Tensor()> make);

 private:
  friend class Gradients;
  friend class Saved;
  friend class Tape;
  Variable(Tensor value, int max_terms);  ///< that wants a gradient
  void settle() const;
  // Reading a lazy value is no change that anybody sees.
  mutable Tensor value_;
  mutable std::shared_ptr<detail::GradSlot> slot_;
  mutable std::shared_ptr<LazyValue> lazy_;
  mutable std::shared_ptr<detail::Remake> remake_;
  Shape lazy_shape_;  ///< stays, as somebody may hold a reference to it while the value is read
};

/// What a node keeps of an input's value for its backward function: the numbers, or how to make
/// them again (Variable::set_remake()), once for all nodes that want them.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Variable& x);
  /// The numbers; for one call in a pass.
  Tensor take() const;

 private:
  Tensor value_;
  std::shared_ptr<detail::Remake> remake_;
};

/// Computes a value, once, when it is first needed: so what follows may compute it in passing.
class LazyValue {
 public:
  virtual ~LazyValue() = default;
  LazyValue(const LazyValue&) = delete;
  LazyValue& operator=(const LazyValue&) = delete;
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  bool requires_grad() const { return requires_grad_; }
  bool is_made() const { return made_.has_value(); }
  const Variable& made() {
    if (!is_made()) made_ = make();
    return made_;
  }

 protected:
  LazyValue(const Shape& shape, DType dtype, bool requires_grad)
      : shape_(shape), dtype_(dtype), requires_grad_(requires_grad) {}
  virtual Variable make() = 0;

 private:
  Shape shape_;
  DType dtype_;
  bool requires_grad_;
  Variable made_;
};

/// What a node's backward function sees: the gradients of its outputs, and where to put those of
/// its inputs and parameters. An output, input or parameter that the node has not is Error(kUsage),
/// and so is a function that hands on gradients and has looked at none of an output.
class Gradients {
 public:
  Backend& backend() const { return *backend_; }
  /// Whether output i has a gradient. Of a node's outputs one has, at least.
  bool has(int i) const;
  /// The gradient of output i, one tensor; Error(kUsage) where it has none.
  const Tensor& output(int i = 0) const;
  /// The terms whose sum is the gradient of output i: none if it has no gradient, and more than one
  /// only if the node was recorded with max_terms > 1.
  const std::vector<Tensor>& terms(int i = 0) const;
  /// Whether the gradient of the first output is the plain 1 that backward() starts from: a scalar
  /// to be multiplied with may be left out.
  bool output_is_one() const;
  /// Takes the terms over (so that their memory may be reused in place where exclusive()).
  std::vector<Tensor> take_terms(int i = 0);

  /// Whether input i wants a gradient.
  bool wants(int i) const;
  /// Hands over a term of input i's gradient, which has the input's shape and dtype; Error(kUsage)
  /// otherwise. The same tensor may be handed to several inputs.
  void set(int i, Tensor gradient);

  struct Target {
    Tensor tensor;  ///< write here (empty: there is no parameter, or it is frozen)
    /// Add instead of overwrite: an earlier use or micro-batch wrote already
    bool accumulate = false;
    explicit operator bool() const { return static_cast<bool>(tensor); }
  };
  /// Place of the gradient of this node's parameter j: a view into its bucket. Ask once per call,
  /// and write it before returning. `early`: what Tape::early_gradient() gave this node.
  Target parameter(int j, const std::shared_ptr<Tensor>& early = nullptr);

  /// Runs `work`, which writes gradients of this node's parameters and nothing else, beside what is
  /// issued next: see Branches::issue(). False where it was not run.
  bool beside(const std::function<void()>& work, std::vector<Tensor> keep);

  /// Goes back through what `body` records of `x`, the value of input 0, which it gets as that
  /// input: it computes the output anew. For nodes of one output; the parameters that `body` uses
  /// are the node's.
  void recompute(Tensor x, const std::function<Variable(const Variable& x)>& body);

 private:
  friend class Tape;
  Gradients(Tape& tape, detail::Node& node, bool output_is_one);
  Tape* tape_;
  Backend* backend_;
  detail::Node* node_;
  bool output_is_one_;
};

using BackwardFunction = std::function<void(Gradients&)>;

namespace detail {
struct Node {
  std::string_view name, layer;
  std::vector<std::shared_ptr<GradSlot>> outputs,
      inputs;                          ///< an input's is null where it wants none
  std::vector<Parameter*> parameters;  ///< null: there is none
  BackwardFunction backward;
  bool recomputed = false;  ///< other nodes make its gradients
  bool asked = false;       ///< its backward function looked at a gradient of an output
  bool answered = false;    ///< and handed on one of an input or a parameter
};
}  // namespace detail

/// Records one pass, define by run, and runs it backwards in reverse order of creation. Nodes, and
/// the tensors that they saved, are freed as the backward pass leaves them.
class Tape {
 public:
  explicit Tape(Backend& backend);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Backend& backend() const { return *backend_; }
  /// The layer whose functions are recorded now.
  std::string_view layer() const { return layer_; }

  /// A leaf that wants a gradient (an input under gradient check). Read it with gradient() after
  /// backward().
  Variable leaf(Tensor value);
  /// The gradient that backward() left in a leaf; empty if it got none.
  static Tensor gradient(const Variable& leaf);

  /// Records a node with one output. Where neither an input nor a trainable parameter wants a
  /// gradient nothing is recorded. Inputs without a value and null parameters stand for optional
  /// ones that are not there. `name` must outlive the tape (a string literal). `max_terms`: how
  /// many gradient terms `backward` takes unsummed.
  Variable record(std::string_view name, Tensor output, const std::vector<Variable>& inputs,
                  std::vector<Parameter*> parameters, BackwardFunction backward, int max_terms = 1);
  /// Records a node with several outputs. `backward` is called once, when all that reads them has
  /// been; outputs that the loss does not depend on have no gradient then.
  std::vector<Variable> record(std::string_view name, std::vector<Tensor> outputs,
                               const std::vector<Variable>& inputs,
                               std::vector<Parameter*> parameters, BackwardFunction backward);

  /// Called when a parameter's gradient is complete and nothing later in this pass reads the
  /// parameter.
  using ReadyObserver = std::function<void(Parameter&)>;
  void set_ready_observer(ReadyObserver observer) { observer_ = std::move(observer); }
  /// Gives memory to the gradient of a parameter that has none and is to be written.
  void set_gradient_memory(std::function<void(Parameter&)> memory) { memory_ = std::move(memory); }
  /// Called with each gradient that a node has made, of its inputs (`of`: "its input") and
  /// parameters (their names).
  using GradientObserver =
      std::function<void(std::string_view layer, std::string_view of, const Tensor& gradient)>;
  void set_gradient_observer(GradientObserver observer) {
    gradient_observer_ = std::move(observer);
  }

  /// Runs the tape backwards from a scalar `loss`; seed is d(total)/d(loss). With `accumulate`,
  /// gradients add to those that this tape's backward passes have written since the last one
  /// without it; otherwise the first contribution overwrites. With `report` false the observer is
  /// not told (all but the last micro-batch of a group). The tape is empty afterwards.
  void backward(const Variable& loss, double seed = 1.0, bool accumulate = false,
                bool report = true);

  Branches& branches() { return branches_; }

  /// The memory of a parameter's gradient for a node to be recorded, which has numbers for it
  /// before the backward pass: the node may write them there now, and makes the gradient of them in
  /// place when its turn comes (Gradients::parameter()). Where another node writes the gradient
  /// before that, what is handed out here becomes a copy. Null where somebody has it already. For
  /// passes whose backward pass overwrites gradients (Pass::overwrites).
  std::shared_ptr<Tensor> early_gradient(Parameter& parameter);

  /// Nodes recorded while it lives are of this layer, whose name is in errors of their backward
  /// functions. The layer outlives the tape's nodes. Scopes nest.
  class Scope {
   public:
    Scope(Tape* tape, std::string_view layer)
        : tape_(tape), before_(tape ? std::exchange(tape->layer_, layer) : layer) {}
    ~Scope() {
      if (tape_) tape_->layer_ = before_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape* tape_;
    std::string_view before_;
  };

  /// Forgets everything recorded.
  void clear();
  std::size_t nodes() const { return nodes_.size(); }
  /// The first node so far, by its layer, that had a gradient and handed none of an input's on;
  /// empty: there is none.
  const std::string& stopped_at() const { return stopped_at_; }

 private:
  friend class Gradients;
  struct Use {
    Parameter* parameter = nullptr;
    int remaining = 0;      ///< uses of the parameter that the backward pass has not left yet
    bool written = false;   ///< its grad tensor holds a contribution of this group of micro-batches
    bool reported = false;  ///< the observer knows
    std::shared_ptr<Tensor> early = nullptr;  ///< early_gradient(), until the gradient is written
  };
  Use& use(const Parameter& parameter);
  void give_memory(Parameter& parameter);
  /// The node, but for its outputs; null where nothing is to be recorded.
  detail::Node* add(std::string_view name, const std::vector<Variable>& inputs,
                    std::vector<Parameter*> parameters, BackwardFunction backward);
  void run(detail::Node& node, bool output_is_one);
  void show_gradients(const detail::Node& node) const;
  void leave(const detail::Node& node, bool report);
  void report(Use& use);

  Backend* backend_;
  Branches branches_;
  std::vector<detail::Node> nodes_;
  std::string_view layer_;  ///< of the nodes that are recorded now
  Tensor one_;              ///< what most passes start from, written once
  std::vector<Use> uses_;   ///< by Parameter::index
  ReadyObserver observer_;
  std::function<void(Parameter&)> memory_;
  GradientObserver gradient_observer_;
  std::string stopped_at_;
};

/// Something that some functions look for in a pass, by its type.
class PassExtension {
 public:
  virtual ~PassExtension() = default;
};

/// What a forward pass needs to know besides its input; handed down through every layer.
struct Pass {
  Backend& backend;
  Tape* tape = nullptr;           ///< null: no gradients are wanted
  bool training = false;          ///< batch statistics and dropout
  std::uint64_t dropout_key = 0;  ///< from the seed
  /// Distinct per rank, step and micro-batch, in the upper 40 bits; layers count up in the lower
  /// ones
  std::uint64_t dropout_counter = 0;
  /// A part of an earlier pass is computed again: running statistics have moved already
  bool recomputing = false;
  /// What is cheap to compute is computed again in the backward pass, not kept: less memory, and a
  /// little more time. GPUs have memory and want the time.
  bool lean = backend.device() != DeviceType::kCuda;
  /// The backward pass will overwrite gradients (the first micro-batch of an update), not add
  bool overwrites = false;
  /// Factor of all gradients of this pass (fp16's loss scale; the update takes it out again)
  double loss_scale = 1.0;
  std::vector<PassExtension*> extensions = {};  ///< null ones count for nothing
  /// Called with what each layer has taken and made, the innermost first.
  std::function<void(std::string_view layer, std::span<const Variable> in, const Variable& out)>
      layer_observer = {};

  /// The extension of this type; null where the pass has none.
  template <class T>
  T* find() const {
    for (PassExtension* extension : extensions)
      if (T* const found = dynamic_cast<T*>(extension)) return found;
    return nullptr;
  }

  /// Records a node on the tape, as Tape::record does; without a tape the values stay plain.
  Variable record(std::string_view name, Tensor output, const std::vector<Variable>& inputs,
                  std::vector<Parameter*> parameters, BackwardFunction backward,
                  int max_terms = 1) {
    if (!tape) return Variable(std::move(output));
    return tape->record(name, std::move(output), inputs, std::move(parameters), std::move(backward),
                        max_terms);
  }
  std::vector<Variable> record(std::string_view name, std::vector<Tensor> outputs,
                               const std::vector<Variable>& inputs,
                               std::vector<Parameter*> parameters, BackwardFunction backward) {
    if (tape)
      return tape->record(name, std::move(outputs), inputs, std::move(parameters),
                          std::move(backward));
    return {std::make_move_iterator(outputs.begin()), std::make_move_iterator(outputs.end())};
  }
};

}  // namespace starling
