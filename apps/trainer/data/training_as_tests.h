#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "apps/trainer/data/dataset.h"

namespace starling {

/// The training samples of a data set that is open, as they would be tested.
class TrainingAsTests final : public Dataset {
 public:
  explicit TrainingAsTests(const Dataset& inner) : inner_(inner) {}
  DatasetInfo info() const override {
    DatasetInfo info = inner_.info();
    info.test_samples = info.train_samples;
    info.test_bytes.reset();  // nobody has counted those of training
    return info;
  }
  void open() override {}
  void read(Split, std::int64_t index, std::span<std::byte* const> out) const override {
    inner_.read(Split::kTrain, index, out);
  }
  void read_part(Split, std::int64_t index, const PictureChoice& choose, std::int64_t side,
                 std::span<std::byte* const> out, CutTarget* later) const override {
    inner_.read_part(Split::kTrain, index, choose, side, out, later);
  }
  void will_read(Split, std::span<const std::int64_t> indices) const override {
    inner_.will_read(Split::kTrain, indices);
  }
  std::int64_t label(Split, std::int64_t index) const override {
    return inner_.label(Split::kTrain, index);
  }
  std::string name(Split, std::int64_t index) const override {
    return inner_.name(Split::kTrain, index);
  }

 private:
  const Dataset& inner_;
};

}  // namespace starling
