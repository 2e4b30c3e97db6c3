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
/// Accumulates the gradient of one value until the backward function of the node that computed the
/// value runs.
struct GradientSlot {
  std::vector<Tensor> terms;  ///< the gradient is their sum
  Shape shape = {};           ///< of the value and its gradient
  DType dtype = DType::kFloat32;
  int max_terms = 1;  ///< further terms are added to the last one
  void add(Tensor term);
};
/// A value that is recomputed in the backward pass instead of being kept.
struct Recomputed {
  std::function<Tensor()> compute;
  Tensor value;     ///< from the first Saved::take() to the last
  int pending = 0;  ///< nodes that have saved the value and not taken it yet
};
}  // namespace detail

class LazyValue;

/// A value computed in a pass. If a tape recorded the computation it can have a gradient. Cheap to
/// copy: copies refer to the same value.
class Variable {
 public:
  Variable() = default;
  explicit Variable(Tensor value) : value_(std::move(value)) {}
  /// A value that is computed when it is first read, or when an operation that reads it is
  /// recorded.
  explicit Variable(std::shared_ptr<LazyValue> lazy);
  const Tensor& value() const {
    if (lazy_) evaluate();
    return value_;
  }
  bool has_value() const { return lazy_ || value_; }
  const Shape& shape() const { return value_ ? value_.shape() : lazy_shape_; }
  DType dtype() const;
  bool requires_grad() const;
  /// Null if the value was never lazy or has been computed through this handle.
  const std::shared_ptr<LazyValue>& lazy() const { return lazy_; }
  /// Whether both are handles to the same value.
  bool same_as(const Variable& other) const;
  /// Nodes that save this value keep `compute` instead. It must give the same bits, from tensors
  /// that are kept for the backward pass anyway.
  void set_recompute(std::function<Tensor()> compute);
  /// The former name of set_recompute().
  void set_remake(std::function<Tensor()> compute) { set_recompute(std::move(compute)); }

 private:
  friend class Gradients;
  friend class Saved;
  friend class Tape;
  Variable(Tensor value, int max_terms);  ///< with a gradient
  void evaluate() const;
  // mutable: evaluating a lazy value does not change what a caller sees.
  mutable Tensor value_;
  mutable std::shared_ptr<detail::GradientSlot> slot_;
  mutable std::shared_ptr<LazyValue> lazy_;
  mutable std::shared_ptr<detail::Recomputed> recomputed_;
  Shape lazy_shape_;  ///< not cleared by evaluate(): shape() returned a reference to it
};

/// An input's value saved for a backward function: the tensor, or how to recompute it
/// (Variable::set_recompute()). All nodes that save a value share one recomputation.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Variable& x);
  /// The value. To be called once.
  Tensor take() const;

 private:
  Tensor value_;
  std::shared_ptr<detail::Recomputed> recomputed_;
};

/// A value that is computed once, when it is first needed. Until then the next operation may take
/// over the computation and fuse it with its own.
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

/// The argument of a node's backward function: reads the gradients of the node's outputs, and takes
/// those of its inputs and parameters. Indices out of range are Error(kUsage), and so is a function
/// that sets gradients without having read an output's.
class Gradients {
 public:
  Backend& backend() const { return *backend_; }
  /// Whether output i has a gradient. At least one output of the node has.
  bool has(int i) const;
  /// The gradient of output i as one tensor. Error(kUsage) if it has none.
  const Tensor& output(int i = 0) const;
  /// The terms whose sum is the gradient of output i: none without a gradient, more than one only
  /// if the node was recorded with max_terms > 1.
  const std::vector<Tensor>& terms(int i = 0) const;
  /// Whether the gradient of output 0 is the constant 1 that backward() starts from, so that a
  /// multiplication by it can be skipped.
  bool output_is_one() const;
  /// Like terms(), and gives up the tape's references, so that their memory can be reused if it is
  /// exclusive().
  std::vector<Tensor> take_terms(int i = 0);

  /// Whether input i needs a gradient.
  bool wants(int i) const;
  /// The term that set() would add input i's gradient to, taken out of it: for a backward function
  /// that adds up itself. Empty if there is none.
  Tensor take_input_term(int i);
  /// Adds a term to input i's gradient. Error(kUsage) unless it has the input's shape and dtype.
  /// The same tensor may be passed for several inputs.
  void set(int i, Tensor gradient);

  struct Target {
    Tensor tensor;  ///< to be written; empty if there is no such parameter, or it is frozen
    /// Add to the tensor instead of overwriting it: it has gradients of an earlier use or
    /// micro-batch
    bool accumulate = false;
    explicit operator bool() const { return static_cast<bool>(tensor); }
  };
  /// Where to write the gradient of the node's parameter j: a view into its bucket. Call it once
  /// per backward function, which must write the tensor. `early`: the result of
  /// Tape::early_gradient() for this node.
  Target parameter(int j, const std::shared_ptr<Tensor>& early = nullptr);

  /// Runs `work` concurrently with what is issued next, see Branches::issue(). It may write
  /// gradients of this node's parameters and nothing else. Returns false if it was not run.
  bool run_concurrently(const std::function<void()>& work, std::vector<Tensor> keep);
  /// The former name of run_concurrently().
  bool beside(const std::function<void()>& work, std::vector<Tensor> keep) {
    return run_concurrently(work, std::move(keep));
  }

  /// Recomputes the node's only output by calling `body` with the values of its inputs, and
  /// continues backward through what `body` records. The parameters that `body` uses must be the
  /// node's.
  void recompute(std::vector<Tensor> values,
                 const std::function<Variable(std::span<const Variable> inputs)>& body);

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
  std::vector<std::shared_ptr<GradientSlot>> outputs,
      inputs;                          ///< null for an input without gradient
  std::vector<Parameter*> parameters;  ///< null for an optional one that is absent
  BackwardFunction backward;
  bool recomputed = false;     ///< Gradients::recompute() was called
  bool read_output = false;    ///< the backward function has read an output's gradient
  bool set_gradients = false;  ///< it has set one of an input or a parameter
};
}  // namespace detail

/// Records the operations of one pass as it runs, and runs their backward functions in reverse
/// order. A node and the tensors it saved are freed as soon as its backward function has run.
class Tape {
 public:
  explicit Tape(Backend& backend);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Backend& backend() const { return *backend_; }
  /// The layer that is being recorded; see Scope.
  std::string_view layer() const { return layer_; }

  /// An input that needs a gradient, e.g. for a gradient check; gradient() reads it after
  /// backward().
  Variable leaf(Tensor value);
  /// The gradient of a leaf; empty if it got none.
  static Tensor gradient(const Variable& leaf);

  /// Records a node with one output, unless no input or trainable parameter needs a gradient.
  /// Optional inputs that are absent are Variables without value, absent parameters null. `name`
  /// must outlive the tape (a string literal). `max_terms`: how many terms of the output's gradient
  /// are kept apart instead of being summed.
  Variable record(std::string_view name, Tensor output, const std::vector<Variable>& inputs,
                  std::vector<Parameter*> parameters, BackwardFunction backward, int max_terms = 1);
  /// Records a node with several outputs. `backward` is called once; outputs that the loss does not
  /// depend on have no gradient then.
  std::vector<Variable> record(std::string_view name, std::vector<Tensor> outputs,
                               const std::vector<Variable>& inputs,
                               std::vector<Parameter*> parameters, BackwardFunction backward);

  /// Called when a parameter's gradient is complete and the rest of the pass does not read the
  /// parameter.
  using ReadyObserver = std::function<void(Parameter&)>;
  void set_ready_observer(ReadyObserver observer) { observer_ = std::move(observer); }
  /// `allocate` is called for a parameter whose gradient has no memory and is about to be written.
  void set_gradient_memory(std::function<void(Parameter&)> allocate) {
    allocate_ = std::move(allocate);
  }
  /// Called with each gradient that a node has computed, of its inputs (`of`: "its input") and
  /// parameters (`of`: their names).
  using GradientObserver =
      std::function<void(std::string_view layer, std::string_view of, const Tensor& gradient)>;
  void set_gradient_observer(GradientObserver observer) {
    gradient_observer_ = std::move(observer);
  }

  /// Runs the tape backwards from a scalar `loss` whose gradient is `seed`. With `accumulate`,
  /// gradients are added to those of the preceding calls; otherwise they overwrite them. `report`:
  /// whether to call the ready observer (false for all but the last micro-batch of an update). The
  /// tape is empty afterwards.
  void backward(const Variable& loss, double seed = 1.0, bool accumulate = false,
                bool report = true);

  Branches& branches() { return branches_; }

  /// The gradient memory of a parameter, for a node about to be recorded whose forward function
  /// already computes numbers for it. It may store them there and turn them into the gradient when
  /// its backward function runs (Gradients::parameter()). If another node writes the gradient
  /// before that, the returned tensor is replaced by a copy. Null if another node has the memory.
  /// Only for passes that overwrite gradients (Pass::overwrites).
  std::shared_ptr<Tensor> early_gradient(Parameter& parameter);

  /// Nodes recorded during its lifetime belong to this layer, which errors in their backward
  /// functions name. `layer` must outlive the nodes. Scopes nest.
  class Scope {
   public:
    Scope(Tape* tape, std::string_view layer)
        : tape_(tape), outer_(tape ? std::exchange(tape->layer_, layer) : layer) {}
    ~Scope() {
      if (tape_) tape_->layer_ = outer_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape* tape_;
    std::string_view outer_;
  };

  /// Discards all nodes.
  void clear();
  std::size_t nodes() const { return nodes_.size(); }
  /// The layer of the first node that got a gradient and passed none on to one of its inputs; empty
  /// if there was none.
  const std::string& stopped_at() const { return stopped_at_; }

 private:
  friend class Gradients;
  /// How a parameter is used in the pass.
  struct Use {
    Parameter* parameter = nullptr;
    int remaining = 0;      ///< recorded nodes that use it and have not run backward yet
    bool written = false;   ///< its gradient holds a contribution of this update's micro-batches
    bool reported = false;  ///< to the ready observer
    std::shared_ptr<Tensor> early = nullptr;  ///< early_gradient(), until the gradient is written
  };
  Use& use(const Parameter& parameter);
  void allocate_gradient(Parameter& parameter);
  /// Adds a node without outputs; null if nothing needs a gradient.
  detail::Node* add(std::string_view name, const std::vector<Variable>& inputs,
                    std::vector<Parameter*> parameters, BackwardFunction backward);
  void run(detail::Node& node, bool output_is_one);
  void show_gradients(const detail::Node& node) const;
  void release(const detail::Node& node, bool report);
  void report(Use& use);

  Backend* backend_;
  Branches branches_;
  std::vector<detail::Node> nodes_;
  std::string_view layer_;
  Tensor one_;             ///< the usual seed, reused by all passes
  std::vector<Use> uses_;  ///< by Parameter::index
  ReadyObserver observer_;
  std::function<void(Parameter&)> allocate_;
  GradientObserver gradient_observer_;
  std::string stopped_at_;
};

/// Base class of additional information in a Pass, which functions look up by its type.
class PassExtension {
 public:
  virtual ~PassExtension() = default;
};

/// What the backward pass recomputes, bitwise equal, so that the forward pass need not store it.
enum class Recompute : std::uint8_t {
  kNone,
  kCheap,  ///< norms and activations: less memory for a little more time
  kBlock,  ///< what is inside a model's blocks (Layer::set_block()): for one more forward pass
};

/// The context of a forward pass, passed down through all layers.
struct Pass {
  Backend& backend;
  Tape* tape = nullptr;           ///< null: no gradients are needed
  bool training = false;          ///< enables batch statistics and dropout
  std::uint64_t dropout_key = 0;  ///< derived from the seed
  /// The upper 40 bits differ for each rank, step and micro-batch; layers count in the lower ones
  std::uint64_t dropout_counter = 0;
  /// Part of an earlier pass is being recomputed: running statistics must not be updated again
  bool recomputing = false;
  /// Of the training run: differs from the backend's where shapes are traced on the meta backend
  DeviceType device = backend.device();
  Recompute recompute = usual_recompute(device);
  /// The backward pass will overwrite gradients (the first micro-batch of an update), not add to
  /// them
  bool overwrites = false;
  /// Factor on all gradients of this pass (fp16's loss scale), which the update divides out
  double loss_scale = 1.0;
  /// int32 [N,T]: position of each token within its document, for sequences packed from several
  /// documents. Positions begin at 0 in each, and causal attention does not cross documents. Empty:
  /// each sequence is one document.
  Tensor positions = {};
  std::vector<PassExtension*> extensions = {};  ///< null ones are ignored
  /// Called after each layer with its inputs and output; inner layers come before outer ones.
  std::function<void(std::string_view layer, std::span<const Variable> in, const Variable& out)>
      layer_observer = {};

  static constexpr Recompute usual_recompute(DeviceType device) {
    return device == DeviceType::kCuda ? Recompute::kNone : Recompute::kCheap;
  }
  /// The extension of this type, or null.
  template <class T>
  T* find() const {
    for (PassExtension* extension : extensions)
      if (T* const found = dynamic_cast<T*>(extension)) return found;
    return nullptr;
  }

  /// Tape::record(), or without a tape just the values.
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
