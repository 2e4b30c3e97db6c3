#include "kernels/optimizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/updates.h"

namespace starling {
namespace {

void check_tensor(const Tensor& tensor, const Tensor& like, const char* what) {
  require(static_cast<bool>(tensor), "update", "{} is missing", what);
  require(tensor.dtype() == like.dtype() && tensor.elements() == like.elements(), "update",
          "{} is {} elements of {}, but x is {} of {}", what, tensor.elements(),
          name_of(tensor.dtype()), like.elements(), name_of(like.dtype()));
}

}  // namespace

void OptimizerRule::finish_matrix(Backend&, const UpdateArgs&, const LayerExtent&,
                                  const Tensor&) const {
  fail(ExitCode::kInternal, "update", "this rule has nothing to finish on matrices");
}

void run_update(Backend& backend, const OptimizerRule& rule, const UpdateArgs& args) {
  named("optimizer", "", [&] { rule.issue(backend, args); });
}

void OptimizerRule::issue(Backend& backend, const UpdateArgs& args) const {
  backend.update({*this, args});
  const UpdateLayers& layers = args.layers;
  if (layers.matrices.empty()) return;
  UpdateArgs part = args;
  part.layers = {};
  part.received.clear();
  part.weights.clear();
  part.encoded = {};
  part.squares = {};
  if (args.control) {  // the clip factor was applied; whether the step counts was not
    part.control = layers.matrix_control;
    backend.copy(args.control.slice(1, Shape{1}), part.control.slice(1, Shape{1}));
  }
  for (const LayerExtent& layer : layers.matrices) {
    const auto slice = [&](const Tensor& tensor) {
      return tensor ? tensor.slice(layer.first, Shape{layer.elements}) : tensor;
    };
    part.x = slice(args.x);
    part.x_out = slice(args.x_out);
    part.gradient = slice(args.gradient);
    part.low = slice(args.low);
    for (std::size_t k = 0; k < args.states.size(); ++k) part.states[k] = slice(args.states[k]);
    part.decay = args.decay.slice(layer.first / kDecayBlock, Shape{layer.elements / kDecayBlock});
    finish_matrix(backend, part, layer, layers.workspace);
  }
}

UpdateLayers make_update_layers(Backend& backend, const std::vector<LayerExtent>& layers,
                                std::int64_t elements) {
  constexpr std::int64_t kPieceEntries = kLayerPiece / kDecayBlock;
  std::vector<std::int32_t> owner, pieces, table;
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const LayerExtent& layer = layers[k];
    require(layer.first == static_cast<std::int64_t>(owner.size()) * kDecayBlock &&
                layer.elements > 0 && layer.elements % kDecayBlock == 0,
            "update", "layer {} has {} elements from {} on; the one before ends at {}", k,
            layer.elements, layer.first, static_cast<std::int64_t>(owner.size()) * kDecayBlock);
    const std::int64_t begin = layer.first / kDecayBlock,
                       end = begin + layer.elements / kDecayBlock;
    const auto first_piece = static_cast<std::int32_t>(pieces.size() / 2);
    for (std::int64_t entry = begin; entry < end; entry += kPieceEntries) {
      pieces.push_back(static_cast<std::int32_t>(entry));
      pieces.push_back(static_cast<std::int32_t>(std::min(kPieceEntries, end - entry)));
    }
    const auto count = static_cast<std::int32_t>(pieces.size() / 2) - first_piece;
    require(layer.padding >= 0 && layer.padding < layer.elements &&
                layer.padding < (std::int64_t{1} << 30),
            "update", "layer {} has {} elements, of them {} padding", k, layer.elements,
            layer.padding);
    table.insert(table.end(),
                 {first_piece, count, static_cast<std::int32_t>(begin),
                  static_cast<std::int32_t>(2 * layer.padding + (layer.weight ? 1 : 0))});
    owner.resize(static_cast<std::size_t>(end), static_cast<std::int32_t>(k));
  }
  require(static_cast<std::int64_t>(owner.size()) * kDecayBlock == elements, "update",
          "layers of {} elements in a bucket of {}",
          static_cast<std::int64_t>(owner.size()) * kDecayBlock, elements);
  const auto put = [&](const std::vector<std::int32_t>& numbers) {
    Tensor tensor(backend, Shape{static_cast<std::int64_t>(numbers.size())}, DType::kInt32);
    backend.copy_from_host(numbers.data(), tensor);
    return tensor;
  };
  UpdateLayers result{.owner = put(owner), .pieces = put(pieces), .layers = put(table)};
  result.sums = Tensor(backend, Shape{static_cast<std::int64_t>(pieces.size())}, DType::kFloat64);
  result.factors =
      Tensor(backend, Shape{static_cast<std::int64_t>(layers.size())}, DType::kFloat64);
  backend.fill(result.sums, 0.0);
  backend.fill(result.factors, 1.0);
  backend.synchronize();  // the host vectors above die here
  return result;
}

std::int64_t state_elements_of(const OptimizerRule& rule, const LayerExtent& layer) {
  const std::int64_t own = rule.state_elements(layer);
  require(own >= 0 && own % kDecayBlock == 0, "update",
          "a state of {} elements for a layer, which is no multiple of {}", own, kDecayBlock);
  return own > 0 ? own : layer.elements;
}

void add_matrices(Backend& backend, const OptimizerRule& rule, DType dtype,
                  const std::vector<LayerExtent>& layers, UpdateLayers& tables,
                  const Tensor& shared) {
  const std::int64_t needed = rule.workspace(layers);
  if (needed == 0) return;
  require(!shared || (shared.elements() >= needed && shared.dtype() == dtype), "update",
          "a workspace of {} elements, needed: {}", shared ? shared.elements() : 0, needed);
  std::int64_t state = 0, elements = 0;
  for (LayerExtent layer : layers) {
    require(!layer.weight || (layer.rows > 0 && layer.rows * layer.columns <= layer.elements),
            "update", "a matrix of {} x {} in {} elements", layer.rows, layer.columns,
            layer.elements);
    layer.state_first = state;
    state += state_elements_of(rule, layer);
    elements += layer.elements;
    tables.extents.push_back(layer);
    if (rule.facts().finishes_matrices && rule.workspace({layer}) > 0)
      tables.matrices.push_back(layer);
  }
  tables.workspace = shared ? shared : Tensor(backend, Shape{needed}, dtype);
  tables.matrix_control = Tensor(backend, Shape{2}, DType::kFloat64);
  backend.fill(tables.matrix_control, 1.0);
  tables.no_decay = Tensor(backend, Shape{std::max(state, elements) / kDecayBlock}, DType::kUInt8);
  backend.fill(tables.no_decay, 0.0);
}

std::int64_t update_layer_bytes(std::int64_t elements) {
  const std::int64_t pieces = (elements + kLayerPiece - 1) / kLayerPiece;
  return elements / kDecayBlock * 4 + pieces * (2 * 4 + 2 * 8) + 4 * 4 + 8;
}

void check_update(const OptimizerRule& rule, const UpdateArgs& args) {
  require(static_cast<bool>(args.x), "update", "x is missing");
  const std::int64_t n = args.x.elements();
  require(n % kDecayBlock == 0, "update", "a bucket of {} elements is not a multiple of {}", n,
          kDecayBlock);
  check_tensor(args.x_out, args.x, "x_out");
  check_tensor(args.gradient, args.x, "the gradient");
  const std::size_t states = rule.facts().states.size();
  require(states <= 4 && args.states.size() == states, "update",
          "the rule has {} states (at most 4), but {} were given", states, args.states.size());
  for (const Tensor& state : args.states) check_tensor(state, args.x, "a state");
  const EncodedTerms& encoded = args.encoded;
  for (const Tensor& received : args.received) {
    if (encoded) {
      check_message("update", received, args.x.dtype(), encoded.elements > 0 ? encoded.elements : n,
                    encoded.code, encoded.block);
    } else {
      check_tensor(received, args.x, "a received buffer");
    }
  }
  require(!encoded || (args.sum_received && encoded.weights.size() == args.received.size()),
          "update", "{} messages with {} weights; they are the terms of a sum",
          args.received.size(), encoded.weights.size());
  require(!encoded || (encoded.first >= 0 &&
                       (encoded.elements == 0 ? encoded.first == 0
                                              : encoded.first + n <= encoded.elements)),
          "update", "numbers {} to {} of messages of {}", encoded.first, encoded.first + n,
          encoded.elements);
  const std::size_t terms =
      args.sum_received ? std::min<std::size_t>(args.received.size(), 1) : args.received.size();
  require(args.weights.size() == terms, "update", "{} weights for {} received buffers",
          args.weights.size(), args.received.size());
  require(
      args.decay && args.decay.dtype() == DType::kUInt8 && args.decay.elements() == n / kDecayBlock,
      "update", "decay must be one uint8 per {} elements", kDecayBlock);
  require(
      !args.control || (args.control.dtype() == DType::kFloat64 && args.control.elements() == 2),
      "update", "control must be two fp64 numbers");
  require(
      !args.squares || (args.squares.dtype() == DType::kFloat64 && args.squares.elements() == 1),
      "update", "the squares' sum must be one fp64 number");
  require(!args.low || (is_low_precision(args.low.dtype()) && args.low.elements() == n), "update",
          "the low-precision copy must be {} elements of bf16 or fp16", n);
  if (rule.facts().measures_layers) {
    const UpdateLayers& layers = args.layers;
    require(layers.owner && layers.pieces && layers.layers && layers.sums && layers.factors,
            "update",
            "the rule measures layers, but the update does not say which elements make one; "
            "make_update_layers does");
    require(layers.owner.elements() == n / kDecayBlock &&
                layers.sums.elements() == layers.pieces.elements() &&
                layers.factors.elements() * 4 == layers.layers.elements(),
            "update",
            "the tables of layers are those of another bucket: {} entries for {} elements",
            layers.owner.elements(), n);
  }
  require(args.step >= 1, "update", "step is {}, but counts from 1", args.step);
}

}  // namespace starling
