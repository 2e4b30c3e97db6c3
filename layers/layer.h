#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/config.h"
#include "core/error.h"
#include "core/parameter.h"
#include "core/registry.h"

// This folder: functions with gradients (functions*.h: each adds one node to the tape), layers with
// parameters (one file each), and models (models/). A layer reads its section of the config. Layers
// compute through core's backend interface only, and know nothing of kernels, buckets or ranks.

namespace starling {

/// Number formats and devices that a layer supports.
struct LayerSupport {
  std::vector<DType> compute{DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};
  std::vector<DeviceType> devices{DeviceType::kCpu, DeviceType::kCuda};
};

/// Training samples as a model gets them, not augmented, from which some layers compute initial
/// values.
struct FirstSamples {
  Shape shape;  ///< of one sample
  std::vector<double> numbers;
  std::int64_t count() const {
    return numbers.empty() ? 0 : static_cast<std::int64_t>(numbers.size()) / shape.elements();
  }
};

/// How files of other programs differ from a model's own tensors.
struct FileNames {
  std::string optional_prefix;  ///< prefix of names that a file may omit: "transformer."
  /// Suffixes of tensors to ignore, which are not learned.
  std::vector<std::string> left_out = {};
  /// Names of tensors that equal one of the model's: {"lm_head.weight", "transformer.wte.weight"}.
  std::vector<std::pair<std::string, std::string>> copies = {};
};
/// Whether a tensor of a file is one of the ignored ones.
inline bool holds_nothing(const FileNames& names, const std::string& tensor) {
  for (const std::string& end : names.left_out) {
    if (("." + tensor).ends_with(end)) return true;
  }
  return false;
}

/// The inputs of a layer, and the shapes of one sample of each.
using Values = std::span<const Variable>;
using Shapes = std::span<const Shape>;

/// A function with parameters, of one value or several: floating or integer, of any rank. Authors
/// derive from it and write two functions, build() and compute(); the public shell checks shapes
/// and names the layer in every error and trace.
///
/// Shapes given to build() are of one sample, without the batch dimension: {H, W, C} for images,
/// {F} for vectors, {T} for tokens.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// Infers sizes from one sample's shapes, declares parameters and buffers, and returns the output
  /// sample's shape. `name` is the layer's path ("layer1.0.conv1"), used in errors and as prefix of
  /// its tensors' names. Called once.
  Shape setup(Shapes inputs, std::string name);
  Shape setup(const Shape& input, std::string name) { return setup({&input, 1}, std::move(name)); }

  /// Runs the layer on a batch (first dimension: samples, of all values). Sizes may differ from the
  /// declared ones, except the last of floating-point values: a larger image, a longer text.
  Variable forward(Values inputs, Pass& pass);
  Variable forward(const Variable& x, Pass& pass) { return forward({&x, 1}, pass); }

  const std::string& name() const { return name_; }
  const std::vector<Shape>& input_shapes() const { return inputs_; }
  /// Of the first input.
  const Shape& input_shape() const { return inputs_.front(); }
  const Shape& output_shape() const { return output_; }

  /// An error if this layer or a child does not support training in `compute` on `device` (the meta
  /// backend stands for any device), with the layer's name and a remedy; none if all do.
  std::optional<Error> unsupported(DType compute, DeviceType device) const;

  /// How many training samples this layer or its children need for initial values; 0: none.
  std::int64_t first_samples() const;
  /// Calls begin_values() of the children, then of this layer, after all tensors were initialised.
  void begin(const FirstSamples& samples);

  /// Marks this layer as one of the blocks that its model repeats. With Pass::recompute kBlock the
  /// forward pass of a block keeps its inputs alone, and the backward pass computes it again, to
  /// the same bits (Chen et al. 2016, arXiv 1604.06174). `always`: whatever Pass::recompute is.
  void set_block(bool always = false) { block_ = always ? Block::kAlways : Block::kWhereAsked; }
  bool is_block() const { return block_ == Block::kWhereAsked; }

  /// Calls `visit` for each layer below this one, then for this one.
  void for_each(const std::function<void(Layer&)>& visit);

  /// How files that a run starts from may differ from this model.
  virtual FileNames file_names() const { return {}; }

  /// Own tensors first, then the children's, in order of declaration: PyTorch's order.
  std::vector<Parameter*> parameters();
  std::vector<ModelBuffer*> buffers();

 protected:
  /// Declares parameters, buffers and children; returns the output shape. Throws through
  /// bad_shape() if `input` does not fit.
  virtual Shape build(const Shape& input);
  virtual Variable compute(const Variable& x, Pass& pass);
  /// Overridden instead of these two by layers with several inputs. By default they accept exactly
  /// one.
  virtual Shape build_several(Shapes inputs);
  virtual Variable compute_several(Values inputs, Pass& pass);
  /// The layer's capabilities, checked before training. The default is those of the built-in
  /// operations. A layer whose own kernels support less must override it.
  virtual LayerSupport support() const { return {}; }

  /// The number of samples that begin_values() of this layer needs.
  virtual std::int64_t wanted_samples() const { return 0; }
  /// Sets initial values that depend on the first training samples. There may be fewer samples than
  /// requested, or none.
  virtual void begin_values(const FirstSamples& samples) { (void)samples; }
  /// Passes a tensor's elements, in memory order, to `change` and writes them back.
  static void change_values(Parameter& parameter,
                            const std::function<void(std::vector<double>&)>& change);

  Parameter& add_parameter(const std::string& name, const Shape& shape, Init init,
                           TensorLayout layout = TensorLayout::kPlain);
  ModelBuffer& add_buffer(const std::string& name, const Shape& shape, Init init,
                          DType dtype = DType::kFloat32);
  /// Adds a child and sets it up for `input`; returns it. An empty name puts the child's tensors
  /// under this layer's own prefix.
  template <class L>
  L& add_child(const std::string& name, std::unique_ptr<L> child, const Shape& input) {
    return add_child(name, std::move(child), Shapes(&input, 1));
  }
  template <class L>
  L& add_child(const std::string& name, std::unique_ptr<L> child, Shapes inputs) {
    L* const added = child.get();
    adopt(name, std::move(child), inputs);
    return *added;
  }
  /// Error(kUsage): "[layer] NAME: an input of SHAPE, but WHAT is needed".
  [[noreturn]] void bad_shape(const Shape& input, std::string_view needed) const;
  /// Wraps `body` in what forward() adds to compute(): checks of inputs and output, recomputation
  /// of a block, a trace range, the layer's name in errors. For layers with a second entry point.
  /// If this is a block, the backward pass may call `body` again, with the values of the inputs.
  using Body = std::function<Variable(Values inputs, Pass& pass)>;
  Variable shell(Values inputs, Pass& pass, const Body& body);
  Variable shell(const Variable& x, Pass& pass, const Body& body) {
    return shell({&x, 1}, pass, body);
  }

 private:
  enum class Block : std::uint8_t { kNone, kWhereAsked, kAlways };

  Variable run_checkpointed(Values inputs, Pass& pass, const Body& body);
  void check_inputs(Values inputs) const;
  void check_output(Values inputs, const Variable& y) const;
  void adopt(const std::string& name, std::unique_ptr<Layer> child, Shapes inputs);

  std::string name_;
  std::vector<Shape> inputs_;
  Shape output_;
  bool built_ = false;
  Block block_ = Block::kNone;
  std::deque<Parameter> parameters_;  // deques: references stay valid
  std::deque<ModelBuffer> buffers_;
  std::vector<std::unique_ptr<Layer>> children_;
};

using LayerRegistry = Registry<std::unique_ptr<Layer>, ConfigSection&>;
/// Layers of `sequential` by `type`; a registered function reads the layer's keys (all but `type`).
LayerRegistry& layers();
/// The outputs that the task asks of a model.
struct ModelOutputs {
  std::int64_t num_classes = 10;  ///< 0: unknown, as when keys are described
};
using ModelRegistry = Registry<std::unique_ptr<Layer>, ConfigSection&, const ModelOutputs&>;
/// Models by `model.type`: layers that map an input sample to the task's outputs, such as scores
/// {num_classes}. A registered function reads all keys but `type` and `num_classes`.
ModelRegistry& models();
void register_builtin_layers();
void register_builtin_models();

class LanguageModel;

/// A model with its tensors collected: parameters get indices, all names are unique.
class Model {
 public:
  /// `inputs`: one sample's shapes. Errors are Error(kUsage) that name the layer.
  Model(std::unique_ptr<Layer> root, Shapes inputs);
  Model(std::unique_ptr<Layer> root, const Shape& input) : Model(std::move(root), {&input, 1}) {}
  Variable forward(Values inputs, Pass& pass) { return root_->forward(inputs, pass); }
  Variable forward(const Variable& x, Pass& pass) { return root_->forward(x, pass); }
  std::optional<Error> unsupported(DType compute, DeviceType device) const {
    return root_->unsupported(compute, device);
  }
  const Shape& input_shape() const { return root_->input_shape(); }
  const Shape& output_shape() const { return root_->output_shape(); }
  void for_each(const std::function<void(Layer&)>& visit) { root_->for_each(visit); }
  FileNames file_names() const { return root_->file_names(); }
  /// Whether it has blocks, which Recompute::kBlock recomputes.
  bool has_blocks() const;
  /// The model as a language model (layers/language_model.h); null if it is none.
  LanguageModel* language_model() const;
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  const std::vector<ModelBuffer*>& buffers() const { return buffers_; }
  /// Collects the tensors again, after layers have declared more.
  void collect();
  /// Elements of trainable parameters.
  std::int64_t parameter_count() const;
  /// Elements of frozen parameters.
  std::int64_t frozen_count() const;

  /// Allocates uninitialised memory on `backend` for every tensor in `dtype` (parameters with
  /// gradients, and buffers; counters stay int64), and if `compute` is bf16 or fp16 a copy of the
  /// parameters in it (see refresh_low()). For tests, evaluation and tracing on the meta backend;
  /// the trainer uses buckets.
  void allocate(Backend& backend, DType dtype, DType compute = DType::kFloat32);
  /// Allocates tensors that are in no bucket: buffers, and frozen parameters. `base`: if not empty,
  /// allocates the tensors of a frozen base model (Parameter::In::kBase).
  void allocate_rest(Backend& backend, DType dtype, DType compute = DType::kFloat32,
                     const std::function<Tensor(const Shape&, DType)>& base = {});
  /// Updates the low-precision copies after initialising or loading parameters.
  void refresh_low();
  /// Error(kUsage) with the layer if the model does not accept samples of this shape, such as
  /// larger test images. Computed on shapes only; the model has no memory afterwards.
  void check_takes(const Shape& input);
  void drop_memory();
  /// The number of samples that initialise() needs.
  std::int64_t first_samples() const { return root_->first_samples(); }
  /// Writes initial values. Number i of tensor k depends on (seed, k, i) only, and for some layers
  /// on the samples. `draws`: which parameters to initialise; empty: all. The others keep their
  /// values.
  void initialise(std::uint64_t seed, const FirstSamples& samples = {},
                  const std::function<bool(const Parameter&)>& draws = {});

 private:
  std::unique_ptr<Layer> root_;
  std::vector<Parameter*> parameters_;
  std::vector<ModelBuffer*> buffers_;
};

/// Reads `model` of a config (`type`, `num_classes`, and the type's keys) and makes the model for
/// inputs of one sample's shape. `classes`: default of `num_classes`. The task checks the output.
std::unique_ptr<Model> make_model(ConfigSection& section, const Shape& input,
                                  std::int64_t classes = 10);

}  // namespace starling
