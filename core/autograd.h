#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/parameter.h"
#include "core/tensor.h"

namespace starling {

class Tape;

namespace detail {
/// Where the gradient of one value gathers until the node that made the value runs.
struct GradSlot {
  std::vector<Tensor> terms;  ///< their sum is the gradient
  Shape shape = {};           ///< the value's, and so the gradient's
  DType dtype = DType::kFloat32;
  int max_terms = 1;  ///< how many terms the node that made the value takes unsummed
  void add(Tensor term);
};
}  // namespace detail

/// A value that a pass computes; on a tape it can have a gradient. Cheap to copy.
class Variable {
 public:
  Variable() = default;
  explicit Variable(Tensor value) : value_(std::move(value)) {}
  const Tensor& value() const { return value_; }
  bool has_value() const { return static_cast<bool>(value_); }
  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  bool requires_grad() const { return slot_ != nullptr; }

 private:
  friend class Tape;
  friend class Gradients;
  Tensor value_;
  std::shared_ptr<detail::GradSlot> slot_;
};

/// What a node's backward function sees: the gradient of its output, and where to put those of its
/// inputs and parameters.
class Gradients {
 public:
  Backend& backend() const { return *backend_; }
  /// The gradient of the output, one tensor.
  const Tensor& output() const { return terms_.front(); }
  /// The terms whose sum is the gradient: more than one only if the node was recorded with
  /// max_terms > 1.
  const std::vector<Tensor>& terms() const { return terms_; }
  /// Whether the gradient of the output is the plain 1 that backward() starts from: a scalar to be
  /// multiplied with may be left out.
  bool output_is_one() const { return output_is_one_; }
  /// Takes the terms over (so that their memory may be reused in place where exclusive()).
  std::vector<Tensor> take_terms() { return std::move(terms_); }

  /// Whether input i wants a gradient. An input or parameter that the node has not is
  /// Error(kUsage).
  bool wants(int i) const { return slot(i) != nullptr; }
  /// Hands over a term of input i's gradient, which has the input's shape and dtype; Error(kUsage)
  /// otherwise. The same tensor may be handed to several inputs.
  void set(int i, Tensor gradient);

  struct Target {
    Tensor tensor;  ///< write here (empty: the parameter is frozen, nothing is wanted)
    /// Add instead of overwrite: an earlier use or micro-batch wrote already
    bool accumulate = false;
    explicit operator bool() const { return static_cast<bool>(tensor); }
  };
  /// Place of the gradient of this node's parameter j: a view into its bucket. Ask once per call,
  /// and write it before returning.
  Target parameter(int j);

  /// Whether a parameter's gradient that touches so many bytes goes to beside(): see Tape::forks().
  bool forks(std::size_t bytes) const;
  /// Runs `work`, which writes gradients of this node's parameters and nothing else, beside what is
  /// issued next. It reads only what is ready now; `keep` holds all that it touches.
  void beside(const std::function<void()>& work, std::vector<Tensor> keep);

 private:
  friend class Tape;
  const std::shared_ptr<detail::GradSlot>& slot(int i) const;
  Parameter& parameter_at(int j) const;
  Backend* backend_ = nullptr;
  Tape* tape_ = nullptr;
  bool output_is_one_ = false;
  std::vector<Tensor> terms_;
  std::vector<std::shared_ptr<detail::GradSlot>> inputs_;
  std::vector<Parameter*> parameters_;
};

using BackwardFunction = std::function<void(Gradients&)>;

/// Records one pass, define by run, and runs it backwards in reverse order of creation. Nodes, and
/// the tensors that they saved, are freed as the backward pass leaves them.
class Tape {
 public:
  explicit Tape(Backend& backend);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Backend& backend() const { return *backend_; }

  /// A leaf that wants a gradient (an input under gradient check). Read it with gradient() after
  /// backward().
  Variable leaf(Tensor value);
  /// The gradient that backward() left in a leaf; empty if it got none.
  static Tensor gradient(const Variable& leaf);

  /// Records a node. Where neither an input nor a trainable parameter wants a gradient nothing is
  /// recorded. `name` must outlive the tape (a string literal). `max_terms`: how many gradient
  /// terms `backward` takes unsummed.
  Variable record(std::string_view name, Tensor output, std::initializer_list<Variable> inputs,
                  std::initializer_list<Parameter*> parameters, BackwardFunction backward,
                  int max_terms = 1) {
    return record(name, std::move(output), std::vector<Variable>(inputs),
                  std::vector<Parameter*>(parameters), std::move(backward), max_terms);
  }
  Variable record(std::string_view name, Tensor output, const std::vector<Variable>& inputs,
                  const std::vector<Parameter*>& parameters, BackwardFunction backward,
                  int max_terms = 1);

  /// Called when a parameter's gradient is complete and nothing later in this pass reads the
  /// parameter.
  using ReadyObserver = std::function<void(Parameter&)>;
  void set_ready_observer(ReadyObserver observer) { observer_ = std::move(observer); }
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

  /// True for small gradients of parameters in a capture: they are a branch of the graph beside the
  /// gradients of values. Neither fills a GPU, and neither reads the other's. At most kMostForks
  /// nodes' are under way at once, which bounds the memory that they keep. STARLING_FORK=0 in the
  /// environment switches it off. The branch is captured on kUpload, which has nothing else to do
  /// within a capture.
  bool forks(std::size_t bytes) const;
  /// Bytes that an H200 moves in some 8 µs; larger work fills it alone
  static constexpr std::size_t kForkBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMostForks = 2;
  bool may_fork() const { return may_fork_; }
  void set_may_fork(bool may) { may_fork_ = may; }
  /// Whether a backward pass has forked since the last question.
  bool take_forked() { return std::exchange(forked_, false); }

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
  struct Node {
    std::string_view name, layer;
    std::shared_ptr<detail::GradSlot> output;
    std::vector<std::shared_ptr<detail::GradSlot>> inputs;
    std::vector<Parameter*> parameters;
    BackwardFunction backward;
  };
  struct Use {
    Parameter* parameter = nullptr;
    int remaining = 0;      ///< uses of the parameter that the backward pass has not left yet
    bool written = false;   ///< its grad tensor holds a contribution of this group of micro-batches
    bool reported = false;  ///< the observer knows
  };
  /// Work of beside() that the compute stream has not waited for.
  struct Fork {
    std::vector<Parameter*> parameters;  ///< of its node
    std::vector<Parameter*> ready;       ///< those that are to be reported once it has
    Event done;
    std::vector<Tensor> keep;
  };
  Use& use(const Parameter& parameter);
  void show_gradients(const Node& node, const Gradients& gradients) const;
  void leave(Node& node, bool report);
  void report(Use& use);
  Fork* fork_of(const Parameter& parameter);
  void join_oldest();

  Backend* backend_;
  bool may_fork_, forked_ = false;
  std::deque<Fork> forks_;  ///< in the order of issue
  std::vector<Node> nodes_;
  std::string_view layer_;  ///< of the nodes that are recorded now
  Tensor one_;              ///< what most passes start from, written once
  std::vector<Use> uses_;   ///< by Parameter::index
  ReadyObserver observer_;
  GradientObserver gradient_observer_;
  std::string stopped_at_;
};

/// Adds up small tensors over the ranks in the midst of a pass.
class RankSums {
 public:
  virtual ~RankSums() = default;
  virtual int ranks() const = 0;
  /// `numbers` become their sum over all ranks, in rank order. Collective: all ranks call it for
  /// the same things in the same order. What is issued to the current stream afterwards reads the
  /// sum.
  virtual void sum(const Tensor& numbers) = 0;
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
  /// Factor of all gradients of this pass (fp16's loss scale; the update takes it out again)
  double loss_scale = 1.0;
  /// Sums over ranks, from which batch norms take statistics of all ranks' batches in training;
  /// null: each its own
  RankSums* norms_over = nullptr;
  /// Momentum of every batch norm's running statistics in training; below 0: each its own
  double norm_momentum = -1.0;
  /// Called with what each layer has taken and made, the innermost first.
  std::function<void(std::string_view layer, const Variable& in, const Variable& out)>
      layer_observer = {};

  Variable record(std::string_view name, Tensor output, std::initializer_list<Variable> inputs,
                  std::initializer_list<Parameter*> parameters, BackwardFunction backward,
                  int max_terms = 1) {
    if (!tape) return Variable(std::move(output));
    return tape->record(name, std::move(output), inputs, parameters, std::move(backward),
                        max_terms);
  }
};

}  // namespace starling
