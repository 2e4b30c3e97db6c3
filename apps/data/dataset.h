#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/collate.h"
#include "apps/pictures/picture.h"
#include "core/config.h"
#include "core/registry.h"
#include "core/safetensors.h"
#include "core/tensor.h"
#include "kernels/math/pixel.h"
#include "layers/layer.h"

namespace starling {

/// Describes one tensor of a sample.
struct TensorInfo {
  std::string name;  ///< "image", "label", …: how tasks find it
  Shape shape;       ///< of one sample; Shape{} is a scalar
  DType dtype = DType::kFloat32;
  /// int32: values are checked to be in [0, classes), or -100 (ignored) in "targets"; 0: any value
  std::int64_t classes = 0;
  /// For uint8 {H, W, C}: how pixels become numbers. Batches hold them in the run's format,
  /// cropped, flipped and normalised.
  std::optional<PixelScale> pixels = std::nullopt;
  /// Of one sample, as the data set writes it.
  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// The samples that data.val_fraction has set aside from the training set for tests, in a form that
/// identifies them again in a data set to which samples were added or removed. Each sample has a
/// pseudo-random draw, made from the seed and its name; a sample is a test if its draw is at most
/// its class's threshold, `most`.
struct TestShare {
  std::uint64_t seed = 0;
  std::vector<std::optional<std::uint64_t>> most;  ///< by class; empty: no tests of that class
  std::int64_t tests = 0;                          ///< how many there were; 0: unknown
  std::uint64_t digest = 0;                        ///< sum of their draws, which identifies the set
  /// What a draw hashes: "values" of a table's row; empty: names, and in older files the text of a
  /// row
  std::string by = {};
};

/// What a data set declares about itself. Must be available without opening files, so that a dry
/// run needs none; the second part is known only after Dataset::open().
struct DatasetInfo {
  std::vector<TensorInfo> tensors;  ///< of each sample
  std::string task;                 ///< default of `task.type`
  std::int64_t classes = 0;         ///< of Dataset::label(); 0: samples have no labels
  std::int64_t train_samples = 0, test_samples = 0;
  /// No value of the tensor "targets" is kIgnoreIndex, so that targets need not be counted before
  /// training (Dataset::counted_targets())
  bool all_count = false;
  std::string complexity = {};  ///< unit of Dataset::complexity(), e.g. "bytes"; empty: unknown
  std::vector<std::string> class_names = {};  ///< empty: unknown
  // Known after open():
  /// Checksums that distinguish the samples from others, by what they are of ("names of pictures in
  /// train/"). They must agree between ranks, and between a run and its resumption.
  std::map<std::string, std::uint32_t> checksums = {};
  std::optional<double> test_bytes = {};     ///< bytes of text in all test targets; empty: unknown
  std::optional<TestShare> test_share = {};  ///< with data.val_fraction
  /// Regression targets are normalised: (value - mean) / deviation. Metrics are in the original
  /// unit.
  double target_mean = 0.0, target_deviation = 1.0;
  std::string contents = {};  ///< lines for the user on what was found and what is left out
  std::shared_ptr<const Collate> collated_by = {};  ///< null: chosen by collate()

  const TensorInfo* find(std::string_view name) const;
  /// Whether there may be targets to ignore.
  bool ignores() const;
  /// How batches are made of samples: `collated_by`; if null that of images if a tensor has pixels,
  /// else that of rows of numbers.
  const Collate& collate() const;
  /// Names of `count` classes: class_names, and numbers where these are missing.
  std::vector<std::string> names_of_classes(std::int64_t count) const;
  /// "32×32×3, 10 classes"
  std::string sample_text() const;
};

/// A training and a test set of samples, which are named tensors. After open() all const methods
/// may be called by several threads at once. A new data set implements info(), open() and read().
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual DatasetInfo info() const = 0;
  /// Reads, maps or generates the samples, once per process; then info() has the actual sizes.
  /// Errors are Error(kUsage) with file, record and reason. Ranks of a host share mapped files.
  virtual void open() = 0;
  enum class Split : std::uint8_t { kTrain, kTest };
  /// Copies a sample's tensors, in info()'s order: out[i] has room for tensor i.
  virtual void read(Split split, std::int64_t index, std::span<std::byte* const> out) const = 0;

  // --- Reading, optional

  /// read() for data sets that crop large pictures (ImageCollate::pictures). `choose` selects the
  /// part to read, given the picture's size, before it is decoded; null: as for tests. The image is
  /// resized to `side` × `side` pixels in training; 0: as declared. With `later` it may be stored
  /// there before resizing; then out[0] is not written.
  using PictureChoice = std::function<std::optional<PicturePart>(const PictureSize&)>;
  virtual void read_part(Split split, std::int64_t index, const PictureChoice& choose,
                         std::int64_t side, std::span<std::byte* const> out,
                         CutTarget* later = nullptr) const {
    (void)choose, (void)side, (void)later;
    read(split, index, out);
  }
  /// Announces samples that will be read soon, in any order, so that files can be prefetched.
  virtual void will_read(Split split, std::span<const std::int64_t> indices) const {
    (void)split, (void)indices;
  }
  /// Samples that could not be read so far, each once, if data.on_bad_image tolerates them; in
  /// training other samples replace them.
  virtual std::vector<std::int64_t> bad_samples() const { return {}; }
  /// Whether a test sample is excluded. Valid after read() of that sample, whose image must then be
  /// ignored.
  virtual bool left_out(std::int64_t test_sample) const { return (void)test_sample, false; }

  // --- Settings that come from elsewhere, before open()

  /// Throws if a folder is missing, for data sets whose constructor accepts that for a dry run.
  virtual void look() const {}
  /// Whether open() only finds and counts files, so that a dry run can call it.
  virtual bool countable() const { return false; }
  /// `task.type`, empty if the config has none. Called before info(), for data sets that support
  /// several tasks.
  virtual void use_task(const std::string& type) { (void)type; }
  /// Use these tests instead of drawing new ones.
  virtual void use_test_share(const TestShare&) {}
  /// There will be no training: training files need not be opened if tests have their own. Called
  /// before use_task().
  virtual void use_only_tests() {}
  /// The model to be tested, whose metadata has what was derived from its training samples. Called
  /// before use_task().
  virtual void use_model(const SafetensorsFile& file, const std::string& source) {
    (void)file, (void)source;
  }
  /// The model that training starts from (`init`): inputs and classes must keep their meaning.
  /// `skips`: some of its tensors are not used. Called before use_task().
  virtual void use_initial_model(const std::string& file, bool skips) { (void)file, (void)skips; }
  virtual void set_interpolation(Interpolation) {}

  // --- Facts about samples, after open()

  /// The class, for data.partition, class weights and the sampler `class_balanced`. Error(kUsage)
  /// if samples have none.
  virtual std::int64_t label(Split split, std::int64_t index) const;
  /// The number of a training sample's targets that are not ignored. Called once for each, if
  /// info().ignores(). The default reads the sample.
  virtual std::int64_t counted_targets(std::int64_t index) const;
  /// Identifies a sample to the user, e.g. by a picture's path below data.path; default: its index.
  virtual std::string name(Split split, std::int64_t index) const {
    return (void)split, std::to_string(index);
  }
  /// Relative cost of reading a sample and training on it, finite and >= 0, in the unit of
  /// info().complexity; for the sampler `load_balanced`. Called once for each training sample, so
  /// it must be cheap (no decoding). Error(kUsage) if info() names no unit.
  virtual double complexity(Split split, std::int64_t index) const;
};

using DatasetRegistry = Registry<std::unique_ptr<Dataset>, ConfigSection&, std::uint64_t>;
/// Data sets by `data.type`. A registered function gets the config section `data` and the seed, and
/// reads all keys but `type`, `shuffle`, `sampler`, `cache`, `augment` and `partition`.
DatasetRegistry& datasets();
void register_builtin_datasets();

/// Memory for one sample: `places` is the argument of Dataset::read().
class SampleMemory {
 public:
  explicit SampleMemory(const DatasetInfo& info);
  std::vector<std::byte*> places;  ///< by tensor

 private:
  std::vector<std::vector<std::byte>> memory_;
};

/// Up to `count` of the first training images, normalised and not augmented, for
/// Model::initialise(). None if samples have no images.
FirstSamples first_samples(const Dataset& dataset, std::int64_t count);

/// A description of the largest absolute value in the first training samples if it is too large to
/// train on, e.g. "numbers up to 1e+20 (target)"; otherwise empty.
std::string implausible_values(const Dataset& dataset);

/// The class of each training sample, after open(). Error(kUsage) if samples have none, or one is
/// out of range.
std::vector<std::int32_t> training_classes(const Dataset& dataset);

/// A micro-batch: every tensor of the data set with a leading batch dimension.
struct Batch {
  struct Named {
    std::string name;
    Tensor tensor;
  };
  std::vector<Named> tensors;
  std::int64_t samples = 0;
  DType format = DType::kFloat32;  ///< of floating-point inputs, that of activations

  const Tensor& operator[](std::string_view name) const;
  const Tensor* find(std::string_view name) const;
};
/// An uninitialised batch.
Batch empty_batch(const std::vector<TensorInfo>& tensors, Backend& backend, std::int64_t samples,
                  DType format);

}  // namespace starling
