#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/picture_index.h"

namespace starling {

/// Base of data sets of pictures of any size: their keys, the split and crops. In training, a
/// picture that cannot be decoded is replaced by the next training picture of its class; in tests
/// it is left out.
class PictureDataset : public BuiltinDataset {
 public:
  bool countable() const final { return !info_.class_names.empty(); }
  void use_test_share(const TestShare& share) final { given_share_ = share; }
  void use_only_tests() final { only_tests_ = true; }
  void use_model(const SafetensorsFile& file, const std::string& source) final;
  void set_interpolation(Interpolation interpolation) final;
  void look() const final;
  void open() final;
  std::int64_t label(Split split, std::int64_t index) const final;
  std::string name(Split split, std::int64_t index) const final;
  double complexity(Split split, std::int64_t index) const final;
  void image(Split split, std::int64_t index, std::uint8_t* out) const final;
  void read_part(Split split, std::int64_t index, const PictureChoice& choose, std::int64_t side,
                 std::span<std::byte* const> out, CutTarget* later) const final;
  void will_read(Split split, std::span<const std::int64_t> indices) const final;
  std::vector<std::int64_t> bad_samples() const final;
  bool left_out(std::int64_t test_sample) const final;

 protected:
  /// `name`: the data set's type, for errors; `where`: documentation of the key `path`.
  PictureDataset(ConfigSection& section, std::uint64_t seed, std::string name,
                 const std::string& path, const std::string& where);
  /// Sets the classes, in the constructor, if they are known without opening files; then the config
  /// need not declare them.
  void know_classes(ConfigSection& section, std::vector<std::string> names);

  struct Sources {
    std::unique_ptr<PictureSource> train, test;  ///< test: null if there is no val/
  };
  /// Opens the files. Error(kUsage) names what is missing.
  virtual Sources open_sources() = 0;
  /// Throws what open_sources() would throw for a missing folder.
  virtual void look_for_sources() const = 0;

  const std::string& path() const { return path_; }

 private:
  struct Place {
    const PictureSource* source;
    std::int64_t number;
  };
  Place place(Split split, std::int64_t index) const;
  void split(const Sources& sources);
  std::string contents_text(const Sources& sources) const;
  void read_growth(ConfigSection& section);
  void decode(Split split, std::int64_t index, const PictureChoice& choose, std::int64_t side,
              std::uint8_t* out, CutTarget* later) const;
  std::int64_t key_of(const Place& place) const {
    return 2 * place.number + (place.source == sources_.test.get() ? 1 : 0);
  }
  void count_bad(Split split, const Place& place, const Error& error) const;

  /// Opens data.val_path and matches its classes with training's by name.
  void open_tests(Sources& opened);

  std::string name_, path_, val_path_;
  bool only_tests_ = false, open_ = false;
  std::vector<std::string> model_classes_;  ///< classes of the tested model; empty: unknown
  std::vector<std::int64_t> test_labels_;   ///< by class of val_path; empty: same as training's
  std::uint64_t seed_;
  PictureRule rule_;
  std::int64_t crop_ = 0;
  double val_fraction_ = 0.0;
  bool skip_ = false;
  PictureSettings settings_;
  Sources sources_;
  std::optional<TestShare> given_share_;
  /// Picture numbers, ascending; tests are in train/ if there is no val/
  std::vector<std::int64_t> train_samples_, test_samples_;
  mutable std::mutex bad_mutex_;
  /// Undecodable pictures as key_of(): twice the number, plus 1 for val/
  mutable std::set<std::int64_t> bad_;
};

}  // namespace starling
