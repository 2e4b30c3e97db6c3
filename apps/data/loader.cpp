#include "apps/data/loader.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "apps/data/batch_maker.h"
#include "apps/data/image_collate.h"
#include "apps/data/loss_shares.h"
#include "apps/data/partition.h"
#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/host.h"
#include "core/log.h"
#include "core/running_clock.h"
#include "core/trace.h"

namespace starling {
namespace {

/// One batch in the training loop's hands, and two ahead of it.
constexpr std::size_t kSlots = 3;
/// A step takes seconds at most; an exchange that it waits for ends within sync.timeout_s, whose
/// default is half of this.
constexpr std::chrono::seconds kUploadLimit{600};
constexpr std::chrono::microseconds kUploadLook{100};
// Time after which a loader is called late, at first; then after twice as long, and so on.
constexpr std::chrono::seconds kLoaderLate{10};

EpochInputs inputs_of(std::int64_t samples, const LoaderSettings& settings, std::int64_t epoch) {
  return {.seed = settings.seed,
          .epoch = epoch,
          .shuffle = settings.shuffle,
          .samples = samples,
          .batch_size = settings.batch_size,
          .rank = settings.rank,
          .ranks = settings.ranks};
}

std::shared_ptr<const Sampler> sampler_of(const LoaderSettings& settings) {
  return settings.sampler ? settings.sampler : make_shuffle_sampler();
}

void check_apart(std::span<const std::int64_t> own, std::span<const std::int64_t> others,
                 const EpochInputs& of_other, int rank, std::int64_t count) {
  std::vector<char> taken(static_cast<std::size_t>(of_other.samples), 0);
  for (const std::int64_t sample : own.first(static_cast<std::size_t>(count)))
    taken[static_cast<std::size_t>(sample)] = 1;
  for (const std::int64_t sample : others.first(static_cast<std::size_t>(count))) {
    if (taken[static_cast<std::size_t>(sample)] == 0) continue;
    fail(ExitCode::kUsage, "sampler", {.key = fmt::format("epoch {}", of_other.epoch)},
         "ranks {} and {} both have sample {}; each is one rank's, by EpochInputs::rank",
         std::min(rank, of_other.rank), std::max(rank, of_other.rank), sample);
  }
}

}  // namespace

struct Loader::State {
  State(const Dataset& set, const LoaderSettings& loader_settings, Backend& device, DType dtype)
      : settings(loader_settings),
        samples(set.info().train_samples),
        maker(make_batch_maker(
            set,
            {.batch_size = loader_settings.batch_size,
             .crop_padding = padding_of(loader_settings.augment),
             .erased = erased_values(loader_settings.augment),
             .steps = steps_of(loader_settings.augment, images_of(set.info()).pictures.has_value()),
             .mix = !mixing_key(loader_settings.augment).empty(),
             .soft_target = loader_settings.soft_target,
             .loss_share = loader_settings.loss_shares != nullptr,
             .dtype = dtype,
             .side = loader_settings.side,
             .fixed_place = loader_settings.fixed_place,
             .threads = loader_settings.threads},
            device)),
        tracer(Tracer::current()) {
    if (settings.dirichlet_alpha > 0.0) {
      parts = dirichlet_shares(set, settings.seed, settings.dirichlet_alpha, settings.ranks);
    }
    for (std::size_t i = 0; i < kSlots; ++i) {
      slots[i] = maker->make_slot();
      free.push_back(i);
    }
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
    for (BatchMaker::Slot& slot : slots) {
      try {
        maker->settle(slot);
      } catch (...) {  // an error of earlier work on the device; whoever cares has asked before
      }
    }
  }

  struct Position {
    std::int64_t epoch = 0, batch = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

  std::int64_t batches_in(std::int64_t epoch) const {
    return epoch == settings.continued_epoch ? settings.rest_batches : batches;
  }
  Position at(Position position) const {
    while (position.batch >= batches_in(position.epoch))
      position = {position.epoch + 1, position.batch - batches_in(position.epoch)};
    return position;
  }
  Position after(Position position) const { return at({position.epoch, position.batch + 1}); }

  /// Of the loader's thread, as `draws` is.
  std::vector<std::int64_t> order_of(std::int64_t epoch) {
    EpochInputs inputs = inputs_of(samples, settings, epoch);
    const bool parted = !parts.empty();
    const auto part_of = [&](int rank) {
      return parted ? std::span<const std::int64_t>(parts[static_cast<std::size_t>(rank)])
                    : std::span<const std::int64_t>();
    };
    inputs.share = part_of(settings.rank);
    const std::shared_ptr<const Sampler> sampler = sampler_of(settings);
    std::vector<std::int64_t> left;
    // Shares of ranks are dealt anew, so nothing of them is taken.
    if (epoch == settings.continued_epoch && !settings.taken.empty() && !parted &&
        sampler->takes_rest()) {
      left = left_of_epoch(*sampler, inputs, settings.taken);
      inputs.left = left;
    }
    const std::int64_t needed = batches_in(epoch) * settings.batch_size;
    std::vector<std::int64_t> order = dealt(*sampler, inputs, needed);
    if (settings.loss_shares) {
      loss_shares =
          settings.loss_shares->of_epoch(epoch, batches_in(epoch), settings.rank, [&](int rank) {
            if (rank == settings.rank) return order;
            EpochInputs of_other = inputs;
            of_other.rank = rank;
            of_other.share = part_of(rank);
            return dealt(*sampler, of_other, needed);
          });
    }
    draws.clear();
    if (sampler->repeats()) {  // places in the whole epoch, which no two ranks share
      const std::int64_t gone =
          inputs.left.empty() ? 0 : samples - static_cast<std::int64_t>(left.size());
      for (std::int64_t k = 0; k < needed; ++k)
        draws.push_back(gone + settings.rank + k * settings.ranks);
      return order;
    }
    // One other rank an epoch, each in turn: a sampler may give all ranks the same.
    if (settings.ranks > 1 && !parted) {
      const auto apart = static_cast<int>(1 + epoch % (settings.ranks - 1));
      inputs.rank = (settings.rank + apart) % settings.ranks;
      check_apart(order, dealt(*sampler, inputs, needed), inputs, settings.rank, needed);
    }
    return order;
  }

  /// Drops what was prepared and prepares from `position` on. What the thread is at right now
  /// carries an old generation and is dropped too.
  void restart(Position position) {
    const std::lock_guard lock(mutex);
    ++generation;
    next_to_make = next_to_give = position;
    free.insert(free.end(), ready.begin(), ready.end());
    ready.clear();
    error = nullptr;
    if (!thread.joinable()) thread = std::thread([this] { work(); });
    changed.notify_all();
  }

  /// Waits until the device has read what the slot held, without holding up the thread that issues
  /// its work. False where the loader ends meanwhile.
  bool wait_until_writable(const BatchMaker::Slot& slot, const Position& position) {
    if (maker->writable(slot)) return true;
    const TraceSpan span("wait for the upload", {}, TraceLane::kLoader);
    const auto limit = RunningClock::now() + kUploadLimit;
    while (!maker->writable(slot)) {
      if (RunningClock::now() > limit) {
        fail(ExitCode::kLost, "loader",
             "the device has not copied an earlier batch within {} s, whose host memory batch {} "
             "of epoch {} was to take; it is stuck in a step before",
             kUploadLimit.count(), position.batch, position.epoch);
      }
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, kUploadLook, [&] { return stopping; })) return false;
    }
    return true;
  }

  void work() {
    Tracer::install(tracer);
    std::vector<std::int64_t> order;
    std::int64_t order_epoch = -1;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || (!free.empty() && !error); });
      if (stopping) return;
      const std::size_t index = free.front();
      free.pop_front();
      const Position position = next_to_make;
      const std::uint64_t made_for = generation;
      lock.unlock();

      std::exception_ptr caught;
      try {
        if (!wait_until_writable(slots[index], position)) return;
        const TraceSpan span("load", {}, TraceLane::kLoader);
        if (order_epoch != position.epoch) {
          order = order_of(position.epoch);
          order_epoch = position.epoch;
        }
        const std::span<const std::int64_t> own(order.data() + position.batch * settings.batch_size,
                                                static_cast<std::size_t>(settings.batch_size));
        ImageChange change = image_change(settings.augment, settings.seed, position.epoch);
        if (!draws.empty())
          change.set_draws(std::span(draws).subspan(
              static_cast<std::size_t>(position.batch * settings.batch_size), own.size()));
        if (!loss_shares.empty())
          slots[index].share = loss_shares[static_cast<std::size_t>(position.batch)];
        maker->fill(slots[index], own, change);
      } catch (...) {
        caught = std::current_exception();
        order_epoch = -1;
      }

      lock.lock();
      if (made_for != generation) {
        free.push_back(index);
        continue;
      }
      if (caught) {
        free.push_back(index);
        error = caught;
      } else {
        ready.push_back(index);
        next_to_make = after(position);
      }
      changed.notify_all();
    }
  }

  const LoaderSettings settings;
  const std::int64_t samples;
  const std::int64_t batches = samples / settings.ranks / settings.batch_size;
  std::vector<std::vector<std::int64_t>> parts;  ///< dirichlet: each rank's samples
  std::unique_ptr<BatchMaker> maker;
  Tracer* tracer;
  std::array<BatchMaker::Slot, kSlots> slots;
  /// What stands for the epoch's samples in what is drawn; empty: they do themselves
  std::vector<std::int64_t> draws;
  std::vector<double> loss_shares;  ///< of the epoch's micro-batches, or empty

  std::mutex mutex;  ///< guards what follows; a slot belongs to whoever took its index
  std::condition_variable changed;
  std::deque<std::size_t> free, ready;
  Position next_to_make, next_to_give;
  std::uint64_t generation = 0;
  std::exception_ptr error;  ///< thrown once the batches made before it are given
  bool stopping = false;
  double waited = 0.0;        ///< of the training loop alone: take_wait_seconds()
  std::size_t held = kSlots;  ///< the slot in the training loop's hands; kSlots: none
  std::thread thread;
};

Loader::Loader(const Dataset& dataset, const LoaderSettings& settings, Backend& backend,
               DType dtype) {
  require(settings.batch_size > 0 && settings.ranks > 0 && settings.rank >= 0 &&
              settings.rank < settings.ranks,
          "loader", "rank {} of {} with batch size {}", settings.rank, settings.ranks,
          settings.batch_size);
  const std::int64_t samples = dataset.info().train_samples;
  if (samples / settings.ranks < settings.batch_size) {
    fail(ExitCode::kUsage, "data",
         "batch_size {} × {} rank{} is more than the {} training samples; use a smaller batch_size "
         "or fewer ranks",
         settings.batch_size, settings.ranks, settings.ranks == 1 ? "" : "s", samples);
  }
  state_ = std::make_unique<State>(dataset, settings, backend, dtype);
}

Loader::~Loader() = default;

std::int64_t Loader::batches_per_epoch() const { return state_->batches; }

void Loader::start(std::int64_t epoch, std::int64_t batch) {
  require(epoch >= 0 && batch >= 0, "loader", "start at epoch {}, batch {}", epoch, batch);
  state_->restart(state_->at({epoch, batch}));
}

void Loader::skip_to_epoch(std::int64_t epoch) {
  const State::Position wanted = state_->at({epoch, 0});
  // At an epoch's end, where nothing is left out, what is prepared already is right.
  if (state_->thread.joinable() && state_->next_to_give == wanted) return;
  state_->restart(wanted);
}

void Loader::advance() {
  State& state = *state_;
  if (!state.thread.joinable()) state.restart(state.at({0, 0}));
  std::unique_lock lock(state.mutex);
  if (state.held != kSlots) {
    state.maker->release(state.slots[state.held]);
    state.free.push_back(std::exchange(state.held, kSlots));
    state.changed.notify_all();
  }
  const auto ready = [&] { return !state.ready.empty() || state.error; };
  if (!ready()) {
    const TraceSpan span("wait for data");
    const auto begin = std::chrono::steady_clock::now();
    FlightRecorder::instance().note(FlightEvent::kLoad);
    for (auto limit = kLoaderLate; !state.changed.wait_for(lock, limit, ready); limit *= 2) {
      const int on_disk = process_state(::getpid()).on_disk;
      log::warning(
          "the data loader is late: waited {:.0f} s for batch {} of epoch {}{}; look at the disk "
          "or the network that data.path is on",
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          state.next_to_give.batch, state.next_to_give.epoch,
          on_disk == 0 ? ""
                       : fmt::format(", {} of this process's threads wait for a disk", on_disk));
    }
    FlightRecorder::instance().note(FlightEvent::kLoaded);
    state.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (state.ready.empty()) std::rethrow_exception(state.error);
  state.held = state.ready.front();
  state.ready.pop_front();
  state.next_to_give = state.after(state.next_to_give);
  lock.unlock();
  state.maker->send(state.slots[state.held]);
}

double Loader::take_wait_seconds() { return std::exchange(state_->waited, 0.0); }

const Batch& Loader::make() {
  State& state = *state_;
  require(state.held != kSlots, "loader", "a batch was to be made before the first was taken");
  state.maker->make(state.slots[state.held]);
  return state.slots[state.held].batch;
}

void Loader::upload_ahead() {
  State& state = *state_;
  std::size_t following = kSlots;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.ready.empty()) following = state.ready.front();
  }
  // The thread leaves what is ready alone.
  if (following != kSlots) state.maker->upload(state.slots[following]);
}

namespace {

/// A view of test images as what an epoch does to training's.
class ShownView final : public Augmenter {
 public:
  explicit ShownView(const TestView& view) : view_(view) {}
  void apply(const SampleRandom&, AugmentedImage& image) const override {
    image.change(step_of(view_, image.shape()[0], image.shape()[1]));
  }

 private:
  TestView view_;
};

}  // namespace

struct EvaluationLoader::State {
  std::unique_ptr<BatchMaker> maker;
  BatchMaker::Slot slot;
  const Dataset* dataset = nullptr;
  Dataset::Split split = Dataset::Split::kTest;
  std::vector<std::int64_t> samples;
  /// `count`: samples of the batch, which ends at position
  std::int64_t batch_size = 1, position = 0, count = 0;
  std::int64_t left_out = 0;
  std::vector<TestView> views;
  std::vector<Augmenters> changes;  ///< by view
  Batch batch;

  const Batch& make(std::size_t view) {
    maker->release(slot);
    // Waits for the copy of the batch before alone, not for the work on it
    maker->wait_until_writable(slot);
    maker->fill(slot, {samples.data() + position - count, static_cast<std::size_t>(count)},
                image_change(changes[view], 0, 0));
    maker->send(slot);
    maker->make(slot);
    batch = slot.batch;
    if (count < batch_size) {
      for (Batch::Named& named : batch.tensors) {
        named.tensor =
            named.tensor.slice(0, named.tensor.shape().without_batch().with_batch(count));
      }
    }
    return batch;
  }
};

EvaluationLoader::EvaluationLoader(const Dataset& dataset, std::int64_t batch_size, int rank,
                                   int ranks, Backend& backend, DType dtype, int threads,
                                   std::vector<TestView> views, Dataset::Split split)
    : state_(std::make_unique<State>()) {
  require(batch_size > 0 && ranks > 0 && rank >= 0 && rank < ranks, "loader",
          "rank {} of {} with batch size {}", rank, ranks, batch_size);
  state_->dataset = &dataset;
  state_->split = split;
  const DatasetInfo info = dataset.info();
  const bool of_training = split == Dataset::Split::kTrain;
  for (std::int64_t i = rank; i < (of_training ? info.train_samples : info.test_samples);
       i += ranks)
    state_->samples.push_back(i);
  const std::optional<Shape>& tested = images_of(info).test_image;
  const auto own = static_cast<std::int64_t>(state_->samples.size());
  state_->batch_size = std::max<std::int64_t>(1, std::min(batch_size, own));
  state_->maker = make_batch_maker(dataset,
                                   {.batch_size = state_->batch_size,
                                    .steps = views.size() > 1 ? 1 : 0,
                                    .dtype = dtype,
                                    .side = of_training && tested ? (*tested)[0] : 0,
                                    .split = split,
                                    .threads = threads},
                                   backend);
  state_->slot = state_->maker->make_slot();
  state_->views = views.empty() ? std::vector<TestView>{TestView{}} : std::move(views);
  for (const TestView& view : state_->views) {
    Augmenters& change = state_->changes.emplace_back();
    if (view.down != 0 || view.right != 0 || view.mirrored)
      change.push_back(std::make_shared<ShownView>(view));
  }
}

EvaluationLoader::~EvaluationLoader() = default;

const Batch* EvaluationLoader::next() {
  State& state = *state_;
  while (const std::int64_t left =
             static_cast<std::int64_t>(state.samples.size()) - state.position) {
    state.count = std::min(left, state.batch_size);
    state.position += state.count;
    const Batch& batch = state.make(0);
    const auto end = state.samples.begin() + state.position;
    const auto good = std::remove_if(end - state.count, end, [&](std::int64_t sample) {
      return state.split == Dataset::Split::kTest && state.dataset->left_out(sample);
    });
    if (good == end) return &batch;
    state.left_out += end - good;
    state.samples.erase(good, end);
    state.position -= state.count;  // the batch is made again, without them
  }
  state.position = 0;
  return nullptr;
}

std::int64_t EvaluationLoader::left_out() const { return state_->left_out; }

std::span<const std::int64_t> EvaluationLoader::samples() const {
  return {state_->samples.data() + state_->position - state_->count,
          static_cast<std::size_t>(state_->count)};
}

const std::vector<TestView>& EvaluationLoader::views() const { return state_->views; }

const Batch& EvaluationLoader::shown(std::size_t view) {
  require(state_->count > 0 && view < state_->views.size(), "loader", "view {} of {} was asked for",
          view, state_->views.size());
  return state_->make(view);
}

std::vector<std::int64_t> epoch_samples(std::int64_t samples, const LoaderSettings& settings,
                                        std::int64_t epoch) {
  return sampler_of(settings)->epoch(inputs_of(samples, settings, epoch));
}

}  // namespace starling
