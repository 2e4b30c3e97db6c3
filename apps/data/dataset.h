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

/// One tensor of a sample.
struct TensorInfo {
  std::string name;  ///< "image", "label", …: what tasks ask for
  Shape shape;       ///< of one sample; Shape{} is a single number
  DType dtype = DType::kFloat32;
  /// int32: values are from 0 to classes - 1, or -100 in "targets" (nothing is to be predicted
  /// there), which is checked; 0: any value
  std::int64_t classes = 0;
  /// How the pixels of a uint8 {H, W, C} become numbers: batches hold them in the run's format,
  /// cropped, flipped and normalised.
  std::optional<PixelScale> pixels = std::nullopt;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// Which samples a data set has drawn from its training set for tests (data.val_fraction), so that
/// later tests of the model take no other, whatever is added or removed meanwhile: of each class
/// those whose draw, a number that the seed and the sample's name give, is at most the class's
/// `most`; none of a class without it.
struct TestShare {
  std::uint64_t seed = 0;
  std::vector<std::optional<std::uint64_t>> most;  ///< by class
  /// How many samples these were; 0: that is not known
  std::int64_t tests = 0;
  /// The sum of their draws, which tells whether they are the same
  std::uint64_t digest = 0;
  /// What a draw is of: "values" of a table's row; empty: names, of older files a row's text
  std::string by = {};
};

/// What a data set declares about itself without opening a file, so that a dry run needs none.
struct DatasetInfo {
  std::vector<TensorInfo> tensors;  ///< of every sample
  std::string task;                 ///< what `task.type` is where the config does not say
  std::int64_t classes = 0;         ///< of Dataset::label(); 0: samples have none
  std::int64_t train_samples = 0, test_samples = 0;
  /// No value of the tensor "targets" is kIgnoreIndex, which counts for nothing: then nobody has to
  /// count them before training (Dataset::counted_targets())
  bool all_count = false;
  /// What Dataset::complexity() counts: "bytes", "tokens"; empty: samples cost the same
  std::string complexity = {};
  std::vector<std::string> class_names = {};  ///< of the classes, in their order; empty: not known
  /// Once it is open: checksums that tell its samples from as many others, each under what it is of
  /// ("names of pictures in train/"). All ranks, and a run that is resumed, must have the same.
  std::map<std::string, std::uint32_t> checksums = {};
  /// How many bytes of text the targets of all test samples stand for, 0 before it is open; none:
  /// nobody knows
  std::optional<double> test_bytes = {};
  std::optional<TestShare> test_share = {};  ///< once it is open, where tests are drawn
  /// Once it is open: what was taken off numbers that are predicted, and what they were divided by
  /// then; metrics are in their own unit
  double target_mean = 0.0, target_deviation = 1.0;
  /// Once it is open: lines on what it has and what it leaves out, for the user
  std::string contents = {};
  /// How batches are made of samples; null: by collate()'s choice
  std::shared_ptr<const Collate> collated_by = {};

  const TensorInfo* find(std::string_view name) const;
  /// Whether targets may count for nothing.
  bool ignores() const;
  /// `collated_by`, or else that of images where tensors have pixels, and of rows elsewhere.
  const Collate& collate() const;
  /// A name for each of so many classes: its number where the data set gives none.
  std::vector<std::string> names_of_classes(std::int64_t count) const;
  /// "32×32×3, 10 classes"
  std::string sample_text() const;
};

/// Samples of named tensors. Thread-safe for reading after open().
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual DatasetInfo info() const = 0;
  /// Reads or maps the files (or makes the samples), once a process; info() then gives the sizes
  /// found. Errors are Error(kUsage) that name file, record and what is wrong. Files that are
  /// mapped share their memory among the ranks of a host.
  virtual void open() = 0;
  enum class Split : std::uint8_t { kTrain, kTest };
  /// Writes the tensors of one sample, in info()'s order: out[i] takes as many bytes as tensor i
  /// was declared with.
  virtual void read(Split split, std::int64_t index, std::span<std::byte* const> out) const = 0;
  /// Where ImageCollate::pictures says that images are parts of larger pictures: `choose` decides
  /// which, before a picture is decoded; none: the test images' rule. A training image gets `side`
  /// pixels a side; 0: as declared. Where `later` is given the image may be left there, not resized
  /// yet; then out's first is not written.
  using PictureChoice = std::function<std::optional<PicturePart>(const PictureSize&)>;
  virtual void read_part(Split split, std::int64_t index, const PictureChoice& choose,
                         std::int64_t side, std::span<std::byte* const> out,
                         CutTarget* later = nullptr) const {
    (void)choose, (void)side, (void)later;
    read(split, index, out);
  }
  /// Announces samples that will be read next, in whatever order: files on disks may be asked for
  /// ahead. Any thread may call it.
  virtual void will_read(Split split, std::span<const std::int64_t> indices) const {
    (void)split, (void)indices;
  }
  /// Refuses a folder that is not there, where the constructor does without one: before a model is
  /// made for what is declared in its place. Not for a dry run.
  virtual void look() const {}
  /// Whether open() finds its files, and does no more than count them: then a dry run opens it too.
  virtual bool countable() const { return false; }
  /// `task.type`, empty where the config has none: before info() is asked, for samples that are of
  /// use to several tasks.
  virtual void use_task(const std::string& type) { (void)type; }
  /// Tests take this share, not a newly drawn one: before open().
  virtual void use_test_share(const TestShare&) {}
  /// Nothing is trained on: before use_task() and open(), which leave training files alone where
  /// tests lie in files of their own.
  virtual void use_only_tests() {}
  /// Tests are of this file's model: before use_task(), for what was made of training samples.
  virtual void use_model(const SafetensorsFile& file, const std::string& source) {
    (void)file, (void)source;
  }
  /// Training goes on from this file's model (`init`), before use_task(): its inputs and classes
  /// are to mean what they meant. `skips`: some of its tensors are left out.
  virtual void use_initial_model(const std::string& file, bool skips) { (void)file, (void)skips; }
  /// The filter that pictures are resized with, once it is known: before anything is read.
  virtual void set_interpolation(Interpolation) {}
  /// The class that data.partition, class weights and the sampler `class_balanced` go by.
  /// Error(kUsage) where samples have none.
  virtual std::int64_t label(Split split, std::int64_t index) const;
  /// How many targets of a training sample count: asked once for each, after open(), where
  /// info().ignores(). As it is it reads the sample.
  virtual std::int64_t counted_targets(std::int64_t index) const;
  /// What a user finds a sample by, such as a picture's path below data.path: its number where the
  /// data set has nothing better.
  virtual std::string name(Split split, std::int64_t index) const {
    return (void)split, std::to_string(index);
  }
  /// Cost of reading a sample and training on it: a finite number >= 0 in whatever unit
  /// info().complexity names. The sampler `load_balanced` goes by it. Asked once for each training
  /// sample, after open(); so it decodes nothing. Error(kUsage) where info() names none.
  virtual double complexity(Split split, std::int64_t index) const;
  /// Samples that could not be read so far, where data.on_bad_image goes on: each once, as a number
  /// of the data set's own. In training others stand in for them.
  virtual std::vector<std::int64_t> bad_samples() const { return {}; }
  /// Whether a test sample is left out, known after it was read: what read() has written is no
  /// image, and tests go on without it.
  virtual bool left_out(std::int64_t test_sample) const { return (void)test_sample, false; }
};

using DatasetRegistry = Registry<std::unique_ptr<Dataset>, ConfigSection&, std::uint64_t>;
/// Data sets by `data.type`; a maker reads all keys but `type`, `shuffle`, `sampler`, `cache`,
/// `augment` and `partition`, and gets the config's seed.
DatasetRegistry& datasets();
void register_builtin_datasets();

/// Memory for one sample, as Dataset::read() takes it.
class SampleMemory {
 public:
  explicit SampleMemory(const DatasetInfo& info);
  std::vector<std::byte*> places;  ///< one for each tensor

 private:
  std::vector<std::vector<std::byte>> memory_;
};

/// The first training images, up to `count`, normalised, not augmented and in whatever order the
/// data set has them: for Model::initialise(). None where samples have no images.
FirstSamples first_samples(const Dataset& dataset, std::int64_t count);

/// The largest number, by size, of the first training samples' inputs and targets that are stored
/// as numbers: "numbers up to 1e+20 (target)"; empty where all are of a size that training takes.
std::string absurd_numbers(const Dataset& dataset);

/// The class of each training sample, once the data set is open. Error(kUsage) where samples have
/// none, or one has another than the data set declares.
std::vector<std::int32_t> training_classes(const Dataset& dataset);

/// A micro-batch as a task takes it: every tensor of the data set with a batch dimension in front.
struct Batch {
  struct Named {
    std::string name;
    Tensor tensor;
  };
  std::vector<Named> tensors;
  std::int64_t samples = 0;
  DType format = DType::kFloat32;  ///< of activations: what a model takes floating numbers in

  const Tensor& operator[](std::string_view name) const;
  const Tensor* find(std::string_view name) const;
};
/// Memory for one, uninitialised.
Batch empty_batch(const std::vector<TensorInfo>& tensors, Backend& backend, std::int64_t samples,
                  DType format);

}  // namespace starling
