#include "apps/data/loader.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
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

/// One batch in use by the training loop, and two loaded ahead.
constexpr std::size_t kSlots = 3;
/// An upload that takes longer is considered stuck: twice the default of sync.timeout_s, which
/// limits any exchange that the device may be waiting for.
constexpr std::chrono::seconds kUploadLimit{600};
constexpr std::chrono::microseconds kUploadPoll{100};
/// First warning about a late batch; the interval doubles after each.
constexpr std::chrono::seconds kLateWarning{10};

/// Error(kUsage) if this rank and another have a sample in common among their first `count`.
void check_disjoint(std::span<const std::int64_t> own, std::span<const std::int64_t> others,
                    const EpochInputs& inputs_of_other, int rank, std::int64_t count) {
  std::vector<char> taken(static_cast<std::size_t>(inputs_of_other.samples), 0);
  for (const std::int64_t sample : own.first(static_cast<std::size_t>(count)))
    taken[static_cast<std::size_t>(sample)] = 1;
  for (const std::int64_t sample : others.first(static_cast<std::size_t>(count))) {
    if (taken[static_cast<std::size_t>(sample)] == 0) continue;
    fail(ExitCode::kUsage, "sampler", {.key = fmt::format("epoch {}", inputs_of_other.epoch)},
         "ranks {} and {} both have sample {}; each is one rank's, by EpochInputs::rank",
         std::min(rank, inputs_of_other.rank), std::max(rank, inputs_of_other.rank), sample);
  }
}

/// A micro-batch's position in the run, counted from 0.
struct Position {
  std::int64_t epoch = 0, batch = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

/// Shows a test view by means of an augmentation.
class ViewAugmenter final : public Augmenter {
 public:
  explicit ViewAugmenter(const TestView& view) : view_(view) {}
  void apply(const SampleRandom&, AugmentedImage& image) const override {
    image.change(step_of(view_, image.shape()[0], image.shape()[1]));
  }

 private:
  TestView view_;
};

}  // namespace

struct Loader::State {
  const LoaderSettings settings;
  const std::int64_t samples;                                               ///< of the training set
  const std::int64_t joint_batch = settings.batch_size * settings.members;  ///< of all members
  const std::int64_t batches_per_epoch = samples / settings.ranks / joint_batch;
  std::vector<std::vector<std::int64_t>> shares;  ///< each rank's samples; empty: not partitioned
  std::unique_ptr<BatchMaker> maker;
  Tracer* tracer;
  std::array<BatchMaker::Slot, kSlots> slots;

  // Of the loader thread: set by make_order() for the epoch that it is loading.
  std::vector<std::int64_t> draws;  ///< indices for augmentation's draws; empty: the samples'
  std::vector<double> loss_shares;  ///< of the micro-batches; empty: none

  /// Guards the members below. A slot belongs to the thread that has taken its index out of a
  /// queue.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::size_t> free, ready;
  Position next_to_load, next_to_return;
  std::uint64_t generation = 0;  ///< counts restarts; batches of an earlier one are discarded
  std::exception_ptr error;      ///< thrown after the batches loaded before it are returned
  bool stopping = false;

  // Of the training loop.
  double wait_seconds = 0.0;
  std::size_t current = kSlots;  ///< the slot that next() returned; kSlots: none

  std::thread thread;

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
    if (settings.dirichlet_alpha > 0.0)
      shares = dirichlet_shares(set, settings.seed, settings.dirichlet_alpha, settings.ranks);
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
      } catch (...) {  // an error of earlier work on the device: the wait for that reports it
      }
    }
  }

  std::int64_t batches_in(std::int64_t epoch) const {
    return epoch == settings.continued_epoch ? settings.rest_batches : batches_per_epoch;
  }
  /// Carries batches beyond the end of an epoch over to the following ones.
  Position normalised(Position position) const {
    while (position.batch >= batches_in(position.epoch))
      position = {position.epoch + 1, position.batch - batches_in(position.epoch)};
    return position;
  }
  Position following(Position position) const {
    return normalised({position.epoch, position.batch + 1});
  }

  /// This member's batches of the samples that its replica was dealt.
  std::vector<std::int64_t> share_of(std::vector<std::int64_t> order, int member) const {
    std::vector<std::int64_t> share;
    for (std::int64_t first = member * settings.batch_size;
         first + settings.batch_size <= std::ssize(order); first += joint_batch)
      share.insert(share.end(), order.begin() + first, order.begin() + first + settings.batch_size);
    return share;
  }

  /// The samples of an epoch in order, of all members; sets `draws` and `loss_shares`.
  std::vector<std::int64_t> make_order(std::int64_t epoch) {
    const std::shared_ptr<const Sampler> sampler =
        settings.sampler ? settings.sampler : make_shuffle_sampler();
    const bool partitioned = !shares.empty();
    std::vector<std::int64_t> remaining;  // if other ranks began the epoch
    const auto inputs_of_rank = [&](int rank) {
      EpochInputs inputs{.seed = settings.seed,
                         .epoch = epoch,
                         .shuffle = settings.shuffle,
                         .samples = samples,
                         .batch_size = joint_batch,
                         .rank = rank,
                         .ranks = settings.ranks};
      if (partitioned) inputs.share = shares[static_cast<std::size_t>(rank)];
      inputs.left = remaining;
      return inputs;
    };
    // With a partition the new ranks have other samples, so the epoch starts over.
    if (epoch == settings.continued_epoch && !settings.taken.empty() && !partitioned &&
        sampler->takes_rest())
      remaining = left_of_epoch(*sampler, inputs_of_rank(settings.rank), settings.taken);

    const std::int64_t needed = batches_in(epoch) * joint_batch;
    const auto order_of_rank = [&](int rank) {
      return dealt(*sampler, inputs_of_rank(rank), needed);
    };
    std::vector<std::int64_t> order = order_of_rank(settings.rank);
    if (settings.loss_shares) {
      loss_shares = settings.loss_shares->of_epoch(
          epoch, batches_in(epoch), settings.rank * settings.members + settings.member,
          [&](int rank) {
            const int of = rank / settings.members;
            return share_of(of == settings.rank ? order : order_of_rank(of),
                            rank % settings.members);
          });
    }
    draws.clear();
    if (sampler->repeats()) {
      // A sample may occur several times: draw by its position in the whole epoch, which is unique.
      const auto taken = remaining.empty() ? 0 : samples - std::ssize(remaining);
      for (std::int64_t k = 0; k < needed; ++k)
        draws.push_back(taken + settings.rank + k * settings.ranks);
    } else if (settings.ranks > 1 && !partitioned) {
      // To detect samplers that ignore the rank, compare with one other rank in each epoch, in
      // turn.
      const auto distance = static_cast<int>(1 + epoch % (settings.ranks - 1));
      const int other = (settings.rank + distance) % settings.ranks;
      check_disjoint(order, order_of_rank(other), inputs_of_rank(other), settings.rank, needed);
    }
    return order;
  }

  /// Discards loaded batches, and the one being loaded, and loads from `position` on.
  void restart(Position position) {
    const std::lock_guard lock(mutex);
    ++generation;
    next_to_load = next_to_return = position;
    free.insert(free.end(), ready.begin(), ready.end());
    ready.clear();
    error = nullptr;
    if (!thread.joinable()) thread = std::thread([this] { work(); });
    changed.notify_all();
  }

  /// Waits until the device has read the slot's last batch. Polls, so that the thread that issues
  /// device work is not blocked. Returns false if the loader is being destroyed.
  bool wait_until_writable(const BatchMaker::Slot& slot, const Position& position) {
    if (maker->writable(slot)) return true;
    const TraceSpan span("wait for the upload", {}, TraceLane::kLoader);
    const auto limit = RunningClock::now() + kUploadLimit;
    while (!maker->writable(slot)) {
      if (RunningClock::now() > limit) {
        fail(ExitCode::kLost, "loader",
             "the device has not copied an earlier batch within {} s, whose host memory batch "
             "{} of epoch {} needs; an earlier step is stuck",
             kUploadLimit.count(), position.batch, position.epoch);
      }
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, kUploadPoll, [&] { return stopping; })) return false;
    }
    return true;
  }

  /// The loader thread.
  void work() {
    Tracer::install(tracer);
    std::vector<std::int64_t> order;  // samples of `order_epoch`
    std::int64_t order_epoch = -1;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || (!free.empty() && !error); });
      if (stopping) return;
      const std::size_t index = free.front();
      free.pop_front();
      const Position position = next_to_load;
      const std::uint64_t started_in = generation;
      lock.unlock();

      std::exception_ptr caught;
      try {
        if (!wait_until_writable(slots[index], position)) return;
        const TraceSpan span("load", {}, TraceLane::kLoader);
        if (order_epoch != position.epoch) {
          order = make_order(position.epoch);
          order_epoch = position.epoch;
        }
        const auto first = static_cast<std::size_t>(
                       (position.batch * settings.members + settings.member) * settings.batch_size),
                   count = static_cast<std::size_t>(settings.batch_size);
        const std::span<const std::int64_t> own(order.data() + first, count);
        ImageChange change = image_change(settings.augment, settings.seed, position.epoch);
        if (!draws.empty()) change.set_draws(std::span(draws).subspan(first, count));
        if (!loss_shares.empty())
          slots[index].share = loss_shares[static_cast<std::size_t>(position.batch)];
        maker->fill(slots[index], own, change);
      } catch (...) {
        caught = std::current_exception();
        order_epoch = -1;
      }

      lock.lock();
      if (started_in != generation) {
        free.push_back(index);
        continue;
      }
      if (caught) {
        free.push_back(index);
        error = caught;
      } else {
        ready.push_back(index);
        next_to_load = following(position);
      }
      changed.notify_all();
    }
  }
};

Loader::Loader(const Dataset& dataset, const LoaderSettings& settings, Backend& backend,
               DType dtype) {
  require(settings.batch_size > 0 && settings.ranks > 0 && settings.rank >= 0 &&
              settings.rank < settings.ranks,
          "loader", "rank {} of {} with batch size {}", settings.rank, settings.ranks,
          settings.batch_size);
  const std::int64_t samples = dataset.info().train_samples;
  if (samples / settings.ranks < settings.batch_size * settings.members) {
    fail(ExitCode::kUsage, "data",
         "batch_size {} × {} rank{} is more than the {} training samples; use a smaller batch_size "
         "or fewer ranks",
         settings.batch_size, settings.ranks * settings.members,
         settings.ranks * settings.members == 1 ? "" : "s", samples);
  }
  state_ = std::make_unique<State>(dataset, settings, backend, dtype);
}

Loader::~Loader() = default;

std::int64_t Loader::batches_per_epoch() const { return state_->batches_per_epoch; }

void Loader::start(std::int64_t epoch, std::int64_t batch) {
  require(epoch >= 0 && batch >= 0, "loader", "start at epoch {}, batch {}", epoch, batch);
  state_->restart(state_->normalised({epoch, batch}));
}

void Loader::skip_to_epoch(std::int64_t epoch) {
  const Position target = state_->normalised({epoch, 0});
  // After an epoch's last batch, the batches loaded ahead are already those of the next epoch.
  if (state_->thread.joinable() && state_->next_to_return == target) return;
  state_->restart(target);
}

void Loader::advance() {
  State& state = *state_;
  if (!state.thread.joinable()) state.restart(state.normalised({0, 0}));
  std::unique_lock lock(state.mutex);
  if (state.current != kSlots) {
    state.maker->release(state.slots[state.current]);
    state.free.push_back(std::exchange(state.current, kSlots));
    state.changed.notify_all();
  }
  const auto ready = [&] { return !state.ready.empty() || state.error; };
  if (!ready()) {
    const TraceSpan span("wait for data");
    const auto begin = std::chrono::steady_clock::now();
    FlightRecorder::instance().note(FlightEvent::kLoad);
    for (auto limit = kLateWarning; !state.changed.wait_for(lock, limit, ready); limit *= 2) {
      const int on_disk = process_state(::getpid()).on_disk;
      log::warning(
          "the data loader is late: waited {:.0f} s for batch {} of epoch {}{}; look at the disk "
          "or the network that data.path is on",
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          state.next_to_return.batch, state.next_to_return.epoch,
          on_disk == 0 ? ""
                       : fmt::format(", {} of this process's threads wait for a disk", on_disk));
    }
    FlightRecorder::instance().note(FlightEvent::kLoaded);
    state.wait_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (state.ready.empty()) std::rethrow_exception(state.error);
  state.current = state.ready.front();
  state.ready.pop_front();
  state.next_to_return = state.following(state.next_to_return);
  lock.unlock();
  state.maker->send(state.slots[state.current]);
}

double Loader::take_wait_seconds() { return std::exchange(state_->wait_seconds, 0.0); }

const Batch& Loader::make() {
  State& state = *state_;
  require(state.current != kSlots, "loader", "make() was called before the first advance()");
  state.maker->make(state.slots[state.current]);
  return state.slots[state.current].batch;
}

void Loader::upload_ahead() {
  State& state = *state_;
  std::size_t following = kSlots;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.ready.empty()) following = state.ready.front();
  }
  // no lock: the loader thread does not touch ready slots
  if (following != kSlots) state.maker->upload(state.slots[following]);
}

EvaluationLoader::EvaluationLoader(const Dataset& dataset, std::int64_t batch_size, int rank,
                                   int ranks, Backend& backend, DType dtype, int threads,
                                   std::vector<TestView> views, Dataset::Split split)
    : dataset_(dataset),
      split_(split),
      views_(views.empty() ? std::vector<TestView>{TestView{}} : std::move(views)) {
  require(batch_size > 0 && ranks > 0 && rank >= 0 && rank < ranks, "loader",
          "rank {} of {} with batch size {}", rank, ranks, batch_size);
  const DatasetInfo info = dataset.info();
  const bool of_training = split == Dataset::Split::kTrain;
  for (std::int64_t i = rank; i < (of_training ? info.train_samples : info.test_samples);
       i += ranks)
    samples_.push_back(i);
  const std::optional<Shape>& tested = images_of(info).test_image;
  batch_size_ = std::max<std::int64_t>(1, std::min<std::int64_t>(batch_size, std::ssize(samples_)));
  maker_ = make_batch_maker(dataset,
                            {.batch_size = batch_size_,
                             .steps = views_.size() > 1 ? 1 : 0,
                             .dtype = dtype,
                             .side = of_training && tested ? (*tested)[0] : 0,
                             .split = split,
                             .threads = threads},
                            backend);
  slot_ = maker_->make_slot();
  for (const TestView& view : views_) {
    Augmenters& augmenters = augmenters_.emplace_back();
    if (view.down != 0 || view.right != 0 || view.mirrored)
      augmenters.push_back(std::make_shared<ViewAugmenter>(view));
  }
}

const Batch* EvaluationLoader::next() {
  while (const std::int64_t left = std::ssize(samples_) - position_) {
    count_ = std::min(left, batch_size_);
    position_ += count_;
    const Batch& batch = shown(0);
    const auto end = samples_.begin() + position_;
    const auto good = std::remove_if(end - count_, end, [&](std::int64_t sample) {
      return split_ == Dataset::Split::kTest && dataset_.left_out(sample);
    });
    if (good == end) return &batch;
    left_out_ += end - good;
    samples_.erase(good, end);
    position_ -= count_;  // repeat the batch without the left-out samples
  }
  position_ = 0;
  return nullptr;
}

const Batch& EvaluationLoader::shown(std::size_t view) {
  require(count_ > 0 && view < views_.size(), "loader", "view {} of {} was asked for", view,
          views_.size());
  maker_->release(slot_);
  // Waits for the previous batch's upload only, not for the computation on it
  maker_->wait_until_writable(slot_);
  maker_->fill(slot_, samples(), image_change(augmenters_[view], 0, 0));
  maker_->send(slot_);
  maker_->make(slot_);
  batch_ = slot_.batch;
  if (count_ < batch_size_) {
    for (Batch::Named& named : batch_.tensors)
      named.tensor = named.tensor.slice(0, named.tensor.shape().without_batch().with_batch(count_));
  }
  return batch_;
}

}  // namespace starling
