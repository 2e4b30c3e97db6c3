#include <algorithm>
#include <vector>

#include "apps/data/batch_maker.h"
#include "apps/data/loader.h"

namespace starling {

struct EvaluationLoader::State {
  std::unique_ptr<BatchMaker> maker;
  BatchMaker::Slot slot;
  std::vector<std::int64_t> samples;
  std::int64_t batch_size = 1, position = 0;
  Batch view;
};

EvaluationLoader::EvaluationLoader(const Dataset& dataset, std::int64_t batch_size, int rank, int ranks, Backend& backend, DType dtype)
    : state_(std::make_unique<State>()) {
  require(batch_size > 0 && ranks > 0 && rank >= 0 && rank < ranks, "loader", "rank {} of {} with batch size {}", rank, ranks, batch_size);
  for (std::int64_t i = rank; i < dataset.info().test_samples; i += ranks) state_->samples.push_back(i);
  const auto own = static_cast<std::int64_t>(state_->samples.size());
  state_->batch_size = std::max<std::int64_t>(1, std::min(batch_size, own));
  state_->maker = make_batch_maker(dataset, state_->batch_size, 0, backend, dtype);
  state_->slot = state_->maker->make_slot();
}

EvaluationLoader::~EvaluationLoader() = default;

const Batch* EvaluationLoader::next() {
  State& state = *state_;
  const std::int64_t left = static_cast<std::int64_t>(state.samples.size()) - state.position;
  if (left == 0) {
    state.position = 0;
    return nullptr;
  }
  const std::int64_t count = std::min(left, state.batch_size);
  state.maker->release(state.slot);
  state.maker->wait_until_writable(state.slot);  // for the copy of the batch before alone, not for the work on it
  state.maker->fill(state.slot, Dataset::Split::kTest, {state.samples.data() + state.position, static_cast<std::size_t>(count)}, {});
  state.maker->send(state.slot);
  state.maker->make(state.slot);
  state.position += count;
  state.view = state.slot.batch;
  if (count < state.batch_size) {
    state.view.images = state.view.images.slice(0, state.view.images.shape().without_batch().with_batch(count));
    state.view.labels = state.view.labels.slice(0, Shape{count});
  }
  return &state.view;
}

}  // namespace starling
