#include "layers/functions_chain.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/operations/reduce.h"

namespace starling::functions {

namespace {

using Slot = ExpressionBuilder::Slot;

/// An expression of values.
struct Program {
  ExpressionBuilder builder;
  std::vector<Variable> leaves;  ///< the tensors of the expression

  Slot leaf(const Variable& x) {
    const Tensor& value = x.value();
    for (std::size_t k = 0; k < leaves.size(); ++k)
      if (leaves[k].same_as(x)) return static_cast<Slot>(k);
    leaves.push_back(x);
    return builder.tensor(value);
  }
  /// A program for the gradients of the `wanted` leaves, which recomputes the chain from the leaves
  /// and `dy`.
  struct Backward {
    ExpressionBuilder builder;
    Slot dy;
    GradientSlots slots;
  };
  /// `factor` multiplies the gradients, which are then results of steps, so that dy may be
  /// broadcast.
  Backward backward(const Tensor& dy, const std::array<bool, kMapTensors>& wanted,
                    std::optional<double> factor = {}) const {
    Backward result{builder, 0, {}};
    result.dy = result.builder.tensor(dy);
    if (result.builder.fits()) result.slots = differentiate(result.builder, result.dy, wanted);
    for (auto& slot : result.slots) {
      if (factor && slot)
        slot = result.builder.step(MapFunction::kMultiply, *slot, result.builder.number(*factor));
    }
    return result;
  }
  /// The leaves that have a gradient; operands of a comparison, for example, have none.
  std::array<bool, kMapTensors> differentiable() const {
    std::array<bool, kMapTensors> result{};
    bool any = false;
    for (std::size_t k = 0; k < leaves.size(); ++k) any |= result[k] = leaves[k].requires_grad();
    if (!any) return result;
    const Backward back = backward({}, result);
    for (std::size_t k = 0; k < leaves.size(); ++k) result[k] = back.slots[k].has_value();
    return result;
  }
  /// Whether the expression and its gradients fit into a program.
  bool fits(std::optional<double> factor = {}) const {
    if (!builder.fits()) return false;
    std::array<bool, kMapTensors> all{};
    std::fill_n(all.begin(), leaves.size(), true);
    return backward({}, all, factor).builder.fits();
  }
  std::vector<Variable> inputs() const {
    std::vector<Variable> result = leaves;
    const std::array<bool, kMapTensors> wanted = differentiable();
    for (std::size_t k = 0; k < result.size(); ++k)
      if (!wanted[k]) result[k] = Variable(result[k].value());
    return result;
  }
  /// The gradient of all leaves if it is the same for all and needs no leaf: from the result
  /// (tensor 0) and the result's gradient (tensor 1). An expression without steps means that it is
  /// the latter, as for a sum.
  std::optional<Expression> common_gradient() const {
    auto [back, dy, slots] = backward({}, differentiable());
    std::optional<Slot> common;
    for (const auto& slot : slots) {
      if (slot && common.value_or(*slot) != *slot) return std::nullopt;
      if (slot) common = slot;
    }
    if (!common || *common == dy) return Expression();
    const auto place = static_cast<Slot>(back.tensors());  // a slot that no tensor has
    if (place >= kMapTensors) return std::nullopt;
    back.replace(static_cast<Slot>(kMapResults + builder.steps() - 1), place);
    back.keep(std::span(&*common, 1));
    for (std::size_t k = 0; k < leaves.size(); ++k)
      if (back.takes(static_cast<Slot>(k))) return std::nullopt;
    back.replace(dy, 1);
    back.replace(place, 0);
    Expression result = back.expression();
    result.in = {};  // keeps no tensors alive
    return result;
  }
  /// Appends another program; returns the slot of its result.
  Slot join(const Program& other) {
    const Expression& from = other.builder.expression();
    std::array<Slot, kMapSlots> place{};
    for (std::size_t k = 0; k < other.leaves.size(); ++k) place[k] = leaf(other.leaves[k]);
    for (std::size_t i = 0; i < other.builder.numbers(); ++i)
      place[kMapNumbers + i] = builder.number(from.numbers[i]);
    Slot result = 0;
    for (int s = 0; s < from.count; ++s) {
      const MapStep& step = from.steps[static_cast<std::size_t>(s)];
      result = builder.step(step.function, place[step.a], place[step.b]);
      place[std::size_t{kMapResults} + static_cast<std::size_t>(s)] = result;
    }
    return result;
  }
};

/// The backward pass of a chain: computes the gradients of all operands of the result's shape in
/// one pass, and sums each of the broadcast ones. `factor`: see Program::backward().
void chain_backward(Gradients& g, const Program& program, const Shape& shape, const Tensor& dy,
                    std::optional<double> factor = {}) {
  const bool unshared = dy.exclusive();
  std::array<bool, kMapTensors> wanted{};
  for (std::size_t k = 0; k < program.leaves.size(); ++k) wanted[k] = g.wants(static_cast<int>(k));
  const auto [builder, dy_slot, slots] = program.backward(dy, wanted, factor);

  struct Result {
    Slot slot;
    Tensor tensor;
  };
  std::vector<Result> whole;
  std::array<Tensor, kMapTensors> gradients;
  for (std::size_t k = 0; k < program.leaves.size(); ++k) {
    if (!slots[k]) continue;
    const Variable& leaf = program.leaves[k];
    const Slot own = *slots[k];
    Tensor& gradient = gradients[k];
    if (leaf.shape() != shape) {
      ExpressionBuilder sum = builder;
      std::array<Slot, 1> result{own};
      sum.keep(result);
      gradient = Tensor(g.backend(), leaf.shape(), leaf.dtype());
      Reduce reduce(dy, gradient);
      if (own != dy_slot || factor) static_cast<Expression&>(reduce) = sum.expression();
      g.backend().reduce(reduce);
    } else if (own == dy_slot && !factor) {
      gradient = dy;
    } else {
      const auto known = std::find_if(whole.begin(), whole.end(),
                                      [&](const Result& other) { return other.slot == own; });
      if (known != whole.end()) {
        gradient = known->tensor;
      } else {
        gradient = Tensor(g.backend(), shape, leaf.dtype());
        whole.push_back({own, gradient});
      }
    }
  }
  // The last step of a pass must be its last result.
  std::sort(whole.begin(), whole.end(),
            [](const Result& a, const Result& b) { return a.slot > b.slot; });
  // Write over dy if it is not shared, to save memory.
  const bool passed = std::any_of(gradients.begin(), gradients.end(), [&](const Tensor& gradient) {
    return gradient && gradient.storage() == dy.storage();
  });
  if (unshared && !passed && whole.size() == 1 && dy.shape() == shape) {
    for (Tensor& gradient : gradients)
      if (gradient && gradient.storage() == whole[0].tensor.storage()) gradient = dy;
    whole[0].tensor = dy;
  }
  for (std::size_t first = 0; first < whole.size(); first += kMapOutputs) {
    const std::size_t count = std::min<std::size_t>(kMapOutputs, whole.size() - first);
    ExpressionBuilder pass = builder;
    std::array<Slot, kMapOutputs> kept{};
    for (std::size_t i = 0; i < count; ++i) kept[i] = whole[first + i].slot;
    pass.keep(std::span(kept).first(count));
    Map map;
    static_cast<Expression&>(map) = pass.expression();
    map.y = whole[first].tensor;
    for (std::size_t i = 1; i < count; ++i) map.also[i - 1] = {whole[first + i].tensor, kept[i]};
    g.backend().map(map);
  }
  // Set now that they are computed, since setting may add terms.
  for (std::size_t k = 0; k < program.leaves.size(); ++k)
    if (gradients[k]) g.set(static_cast<int>(k), std::move(gradients[k]));
}

/// The backward pass of a program whose leaves all have the gradient dy; only their shapes are
/// needed.
void pass_gradient(Gradients& g, const std::vector<Shape>& leaves, const Shape& shape,
                   const Tensor& dy) {
  std::vector<Tensor> gradients(leaves.size());
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    if (!g.wants(static_cast<int>(k))) continue;
    gradients[k] = leaves[k] == shape ? dy : Tensor(g.backend(), leaves[k], dy.dtype());
    if (leaves[k] != shape) g.backend().reduce({dy, gradients[k]});
  }
  for (std::size_t k = 0; k < leaves.size(); ++k)
    if (gradients[k]) g.set(static_cast<int>(k), std::move(gradients[k]));
}

class Chain final : public LazyValue {
 public:
  Chain(std::string_view name, Program program, const Shape& shape, Pass& pass, bool requires_grad)
      : LazyValue(shape, program.leaves.front().dtype(), requires_grad),
        name_(name),
        program_(std::move(program)),
        backend_(pass.backend),
        tape_(pass.tape),
        lean_(pass.recompute != Recompute::kNone),
        layer_(pass.tape ? pass.tape->layer() : std::string_view()) {}
  const Program& program() const { return program_; }
  /// Has `first` compute the value, when it is needed next.
  void compute_by(std::function<void(const Map&)> first) { first_ = std::move(first); }

 private:
  Variable make() override {
    const auto kept = std::make_shared<const Program>(std::exchange(program_, {}));
    const Program& program = *kept;
    const auto compute = [kept, shape = shape(), dtype = dtype(),
                          &backend = backend_](const std::function<void(const Map&)>& by) {
      Map map;
      static_cast<Expression&>(map) = kept->builder.expression();
      map.y = Tensor(backend, shape, dtype);
      by ? by(map) : backend.map(map);
      return map.y;
    };
    const Tensor y = compute(std::exchange(first_, nullptr));
    if (!tape_) return Variable(y);
    const Tape::Scope scope(tape_, layer_);
    const std::vector<Variable> inputs = program.inputs();
    if (const std::optional<Expression> common = program.common_gradient()) {
      // For sums, ReLU, tanh: no leaf is saved, only the result, which following nodes save anyway.
      std::vector<Shape> leaves;
      for (const Variable& leaf : inputs) leaves.push_back(leaf.shape());
      return tape_->record(name_, y, inputs, {},
                           [leaves = std::move(leaves), shape = shape(), back = *common,
                            result = common->count > 0 ? y : Tensor()](Gradients& g) {
                             Tensor dy = std::move(g.take_terms().front());
                             if (back.count > 0) {
                               Map map;
                               map.y = own_gradient_memory(dy);
                               static_cast<Expression&>(map) = back;
                               map.in[0] = result, map.in[1] = std::move(dy);
                               g.backend().map(map);
                               dy = std::move(map.y);
                             }
                             pass_gradient(g, leaves, shape, dy);
                           });
    }
    Variable result = tape_->record(name_, y, inputs, {}, [kept, shape = shape()](Gradients& g) {
      const Tensor dy = std::move(g.take_terms().front());
      chain_backward(g, *kept, shape, dy);
    });
    if (lean_ && result.requires_grad())
      result.set_recompute([compute] { return compute(nullptr); });
    return result;
  }

  std::string_view name_;
  Program program_;
  Backend& backend_;
  std::function<void(const Map&)> first_;
  Tape* tape_;
  bool lean_;
  std::string_view layer_;
};

/// The unevaluated chain of a value, if it has this shape.
Chain* chain_of(const Variable& x, const Shape& shape) {
  if (!x.lazy() || x.lazy()->is_made() || x.shape() != shape) return nullptr;
  return dynamic_cast<Chain*>(x.lazy().get());
}

}  // namespace

Shape broadcast(std::string_view name, const Shape& a, const Shape& b) {
  const bool longer = a.rank() >= b.rank();
  Shape result = longer ? a : b;
  const Shape& other = longer ? b : a;
  const int more = result.rank() - other.rank();
  for (int d = 0; d < other.rank(); ++d) {
    const std::int64_t here = result[more + d], there = other[d];
    if (here == there || there == 1) continue;
    if (here != 1) {
      fail(ExitCode::kUsage, name, "{} and {} do not broadcast: dimension {} is {} and {}",
           a.text(), b.text(), more + d, longer ? here : there, longer ? there : here);
    }
    result[more + d] = there;
  }
  return result;
}

std::optional<Variable> sum_of_chain(std::string_view name, const Variable& x, const Shape& kept,
                                     const Shape& result, double factor, Pass& pass) {
  const Chain* const chain = chain_of(x, x.shape());
  // A chain with another reference is evaluated separately, as its value may be read.
  if (!chain || x.lazy().use_count() > 1 || !chain->program().fits(factor)) return std::nullopt;
  const Program& program = chain->program();
  Reduce sum({}, {}, Tensor(pass.backend, kept, x.dtype()));
  static_cast<Expression&>(sum) = program.builder.expression();
  sum.factor = factor;
  pass.backend.reduce(sum);
  return pass.record(name, sum.y.reshaped(result), program.inputs(), {},
                     [program, shape = x.shape(), kept, factor](Gradients& g) {
                       chain_backward(g, program, shape, g.output().reshaped(kept), factor);
                     });
}

bool compute_sum(
    const Variable& x,
    const std::function<void(const Tensor& a, const Tensor& b, const Tensor& sum)>& add) {
  Chain* const chain = chain_of(x, x.shape());
  if (!chain) return false;
  const Program& program = chain->program();
  const Expression& what = program.builder.expression();
  if (what.count != 1 || what.steps[0].function != MapFunction::kAdd ||
      program.leaves.size() != 2 || program.leaves[0].shape() != x.shape() ||
      program.leaves[1].shape() != x.shape())
    return false;
  chain->compute_by([&add](const Map& map) { add(map.in[0], map.in[1], map.y); });
  x.value();
  return true;
}

Variable pointwise(std::string_view name, MapFunction function, const Operand& a, const Operand& b,
                   Pass& pass) {
  const Variable* const values[] = {a.variable(), b.variable()};
  const Variable* const first = values[0] ? values[0] : values[1];
  require(first != nullptr, "pointwise", "{}: both operands are numbers", name);
  for (const Variable* x : values) {
    if (!x) continue;
    if (!is_floating(x->dtype()) || x->dtype() != first->dtype())
      fail(ExitCode::kUsage, name, "the operands are {} and {}; needed: one floating dtype",
           name_of(first->dtype()), name_of(x->dtype()));
  }
  const Shape shape = values[0] && values[1]
                          ? broadcast(name, values[0]->shape(), values[1]->shape())
                          : first->shape();
  std::array<const Chain*, 2> chains{};
  for (std::size_t i = 0; i < 2; ++i) chains[i] = values[i] ? chain_of(*values[i], shape) : nullptr;
  for (;;) {
    Program program;
    std::array<Slot, 2> slots{};
    for (std::size_t i = 0; i < 2; ++i) {
      const Operand& operand = i == 0 ? a : b;
      slots[i] = !values[i]  ? program.builder.number(operand.number())
                 : chains[i] ? program.join(chains[i]->program())
                             : program.leaf(*values[i]);
    }
    program.builder.step(function, slots[0], slots[1]);
    // A single step always fits, and is the usual case.
    if ((!chains[0] && !chains[1]) || program.fits()) {
      const std::array<bool, kMapTensors> differentiable = program.differentiable();
      const bool wanted =
          pass.tape && std::count(differentiable.begin(), differentiable.end(), true) > 0;
      return Variable(std::make_shared<Chain>(name, std::move(program), shape, pass, wanted));
    }
    // Otherwise evaluate the longer of the two chains.
    const auto steps = [](const Chain* chain) {
      return chain ? chain->program().builder.steps() : 0;
    };
    const Chain* const ends = chains[steps(chains[1]) > steps(chains[0]) ? 1 : 0];
    for (const Chain*& chain : chains)
      if (chain == ends) chain = nullptr;
  }
}

}  // namespace starling::functions
