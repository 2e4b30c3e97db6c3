#include "apps/training/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "apps/data/complexity.h"
#include "apps/data/image_collate.h"
#include "apps/data/loss_shares.h"
#include "apps/inference/adapter.h"
#include "apps/inference/checkpoint_file.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/training/config/graph_plan.h"
#include "apps/training/config/model_metadata.h"
#include "apps/training/device/device.h"
#include "apps/training/estimates/memory.h"
#include "apps/training/estimates/step_model.h"
#include "apps/training/host_numbers.h"
#include "apps/training/state/data_contents.h"
#include "apps/training/state/elastic.h"
#include "apps/training/state/whole_values.h"
#include "apps/training/tasks/metric.h"
#include "apps/training/tasks/norm_statistics.h"
#include "comm/agreement.h"
#include "comm/averaging.h"
#include "comm/shared/shared_tensor.h"
#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/log.h"
#include "core/trace.h"
#include "layers/parameter_reads.h"

namespace starling {
namespace {

/// Null for a replica of one rank.
std::unique_ptr<Replica> make_replica(int ranks, double timeout_seconds, const Backend& backend,
                                      Transport& transport) {
  if (ranks == 1) return nullptr;
  return (backend.device() == DeviceType::kCpu ? make_shared_replica : make_exchanging_replica)(
      transport, ranks, make_process_sharing(timeout_seconds), timeout_seconds);
}

/// Splits each bucket among the replica's ranks, at boundaries that cut neither a block of an
/// encoding nor a layer that a rule measures.
void divide_among_ranks(const TrainConfig& config, int ranks, BucketPlan& plan) {
  std::int64_t block = kDecayBlock;
  bool whole = config.optimizer.rule->facts().measures_layers || config.sync.mixer.sparse;
  for (const ParameterGroup& group : config.optimizer.groups)
    whole = whole || group.rule->facts().measures_layers;
  for (const AlgorithmPlan* algorithm : config.sync.plans())
    block = std::lcm(block, std::max(algorithm->messages.block, kDecayBlock));
  split_buckets(plan, ranks, block, whole);
}

/// Groups of rules for an algorithm whose step 0 is the run's `first`.
std::vector<RuleGroup> rule_groups(const OptimizerSettings& optimizer, const RunLength& length,
                                   std::int64_t first) {
  std::vector<RuleGroup> groups{{optimizer.rule.get(), 1.0}};
  for (const ParameterGroup& group : optimizer.groups) {
    groups.push_back({group.rule.get(), group.lr_scale});
    if (group.until_epoch > 0.0)
      groups.back().until_step = length.step_of_epoch(group.until_epoch) - first;
  }
  return groups;
}

/// Makes each layer wait for its parameters, which other ranks send during the forward pass.
class BucketReads final : public ParameterReads {
 public:
  explicit BucketReads(BucketScheduler& scheduler) : scheduler_(scheduler) {}
  void before(const Parameter& parameter) override { scheduler_.before_read(parameter); }

 private:
  BucketScheduler& scheduler_;
};

}  // namespace

// What the device gave until it had no more is what there is.
Trainer::Trainer(TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                 Backend& backend, Transport& transport, const SafetensorsFile* in_memory) try
    : config_(config),
      length_(run_length(config, site)),
      backend_(backend),
      transport_(transport),
      in_memory_(in_memory),
      replica_(make_replica(site.replica, config.sync.timeout_s, backend, transport)),
      plan_(plan_buckets(config, trace)),
      tape_(backend),
      graphs_(plan_graphs(config, site), backend, transport),
      losses_(backend, config.device.dtype, std::min<std::int64_t>(config.output.log_every, 1024)),
      norm_sums_(config.sync.synchronized_norms ? std::make_unique<NormSums>(transport) : nullptr),
      scaler_(config.device.compute == DType::kFloat16
                  ? std::make_unique<LossScaler>(config.state.loss_scale)
                  : nullptr),
      activation_bytes_(trace.activation_bytes),
      target_flops_(trace.target_flops) {
  agree_on_plan(plan_, config.device.dtype, transport);
  if (replica_) divide_among_ranks(config, site.replica, plan_);
  buckets_ = make_buckets(plan_, backend, config.device.dtype, *config.optimizer.rule,
                          config.optimizer.decay_all, config.device.compute,
                          replica_ ? GradientMemory::kPassing : usual_gradient_memory(backend),
                          replica_.get(), std::bind_front(&Trainer::find_in_memory, this));
  if (!config.optimizer.groups.empty()) {
    std::vector<bool> decays{false};
    for (const ParameterGroup& group : config.optimizer.groups) decays.push_back(group.own_decay);
    set_groups(
        backend, buckets_,
        [&](const Parameter& parameter) { return config.optimizer.group_of(parameter); }, decays);
  }
  if (replica_) replica_->open(buckets_);
  config.model->allocate_rest(backend, config.device.dtype, config.device.compute, base_memory());
  open_part(0);
  schedule_ =
      config.optimizer.make_schedule({config.optimizer.lr, length_.first_total(),
                                      static_cast<double>(length_.first_steps_per_epoch())});
  tape_.set_gradient_memory([this](Parameter& parameter) { scheduler_->begun(parameter); });
  tape_.set_ready_observer([this](Parameter& parameter) { scheduler_->ready(parameter); });

  if (config.task->ignores())
    loss_shares_ = std::make_shared<const LossShares>(
        targets_that_count(*config.data.dataset, transport.world()), config.length.batch_size,
        config.length.accumulate, site, [this](std::int64_t epoch, std::int64_t batch) {
          const std::int64_t step = std::max(length_.step_of_epoch(static_cast<double>(epoch)),
                                             length_.stretches().back().step) +
                                    batch / config_.length.accumulate;
          const Part of = part(part_of(step));
          return step - of.first < of.algorithm.equality.mean_gradients_before;
        });
  size_loader(0);
  evaluation_loader_ = std::make_unique<EvaluationLoader>(
      *config.data.dataset, config.length.batch_size, transport.rank(), transport.size(), backend,
      config.device.compute, loader_settings().threads, config.evaluate.views);
  if (config.state.ema)
    average_ = std::make_unique<ModelAverage>(*config.state.ema, backend, buckets_, *config.model,
                                              replica_.get());
  if (config.state.lookahead)
    lookahead_ = std::make_unique<Lookahead>(*config.state.lookahead, backend, buckets_,
                                             *config.model, replica_.get());
  resident_bytes_ = backend.memory_stats().in_use;
  for (const Bucket& bucket : buckets_)
    if (!bucket.gradients)
      resident_bytes_ += bucket.parameters.bytes();  // at most: all gradients at once
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const Part of = part(k);
    const auto traffic = step_traffic(config, trace, site.replicas(), of.algorithm, of.topology);
    part_traffic_.push_back(traffic ? std::optional(traffic->all) : std::nullopt);
  }
} catch (const AgreedError&) {
  throw;
} catch (const Error& error) {
  if (error.code() != ExitCode::kMemory) throw;
  const auto others = what_fits(config, site, static_cast<double>(backend.memory_stats().reserved));
  fail(ExitCode::kMemory, error.parts().component, {}, "{}; {}", error.message(),
       others.empty() ? "no other recompute or replica fits"
                      : fmt::format("{}", fmt::join(others, "; ")));
}

Trainer::~Trainer() = default;

Tensor Trainer::find_in_memory(const Bucket& bucket, const std::string& prefix,
                               std::int64_t elements, DType dtype) const {
  if (!in_memory_ || replica_) return {};
  if (prefix.starts_with("sync.")) {
    // Not what exchanges change that resume() starts: if it fails, the state is needed once more.
    const AlgorithmPlan& plan = part(part_).algorithm;
    const auto equal = plan.states.begin() + plan.equality.equal_states;
    if (is_mean_of_ranks(*in_memory_) ||
        std::none_of(plan.states.begin(), equal,
                     [&](const KeptState& state) { return prefix == "sync." + state.name; }))
      return {};
  }
  std::shared_ptr<Storage> storage;
  for (std::size_t k = 0; k < bucket.layout->slots.size(); ++k) {
    const BucketSlot& slot = bucket.layout->slots[k];
    const auto at = in_memory_->tensors.find(prefix + "." + slot.parameter->name);
    const ReferredTensor* own =
        at == in_memory_->tensors.end() ? nullptr : ReferredTensor::in(at->second);
    if (!own || own->tensor.dtype() != dtype) return {};
    if (k == 0) storage = own->tensor.storage();
    const std::int64_t first =
        prefix.starts_with("optimizer.") ? bucket.state_extents[k].first : slot.offset;
    if (own->tensor.storage() != storage ||
        own->tensor.raw() != storage->data() + static_cast<std::size_t>(first) * size_of(dtype))
      return {};
  }
  if (!storage || &storage->backend() != &backend_ ||
      storage->bytes() != static_cast<std::size_t>(elements) * size_of(dtype))
    return {};
  return {storage, 0, Shape{elements}, dtype};
}

bool Trainer::size_loader(std::int64_t epoch) {
  const auto& growth = images_of(config_.data.info).growth;
  const std::int64_t side = growth ? growth->side(epoch) : 0;
  if (loader_ && side == image_side_) return false;
  if (loader_ && transport_.rank() == 0)
    log::info("epoch {}: training images of {}×{} from here on", epoch, side, side);
  LoaderSettings settings = loader_settings();
  settings.fixed_place = graphs_.start_at_begin();
  settings.side = image_side_ = side;
  loader_.reset();  // first, so that the next one can reuse its memory
  loader_ =
      std::make_unique<Loader>(*config_.data.dataset, settings, backend_, config_.device.compute);
  return true;
}

LoaderSettings Trainer::loader_settings(bool continues) const {
  LoaderSettings settings;
  settings.seed = config_.seed;
  settings.shuffle = config_.data.shuffle;
  settings.sampler = config_.data.sampler;
  settings.augment = config_.data.augment;
  if (!mixing_key(config_.data.augment).empty()) {
    settings.soft_target = {std::string(config_.task->target()),
                            config_.model->output_shape().back()};
  }
  settings.dirichlet_alpha = config_.data.dirichlet_alpha;
  settings.batch_size = config_.length.batch_size;
  settings.threads = config_.data.threads > 0
                         ? config_.data.threads
                         : spare_threads(config_.device, transport_.world(), backend_.device());
  settings.rank = transport_.rank() / replica_size();
  settings.ranks = transport_.size() / replica_size();
  settings.members = replica_size();
  settings.member = transport_.rank() % replica_size();
  settings.loss_shares = loss_shares_;
  if (continues && length_.stretches().size() > 1) {
    settings.continued_epoch = length_.continued_epoch();
    settings.rest_batches = length_.rest_batches();
    settings.taken = length_.taken();
  }
  return settings;
}

Trainer::Part Trainer::part(std::size_t k) const {
  const SyncPhase& phase = config_.sync.phase(k);
  const AlgorithmPlan& plan = phase.algorithm;
  const std::int64_t began = phase.first_step(length_);
  // State that belongs to single ranks is meaningless for another set of ranks, so such an
  // algorithm restarts.
  const bool restarts = !plan.states.empty() || plan.topology == TopologyKind::kColumnStochastic;
  const auto& stretches = length_.stretches();
  std::int64_t last_change = 0;
  for (std::size_t i = 1; i < stretches.size(); ++i) {
    if (stretches[i].ranks != stretches[i - 1].ranks && !stretches[i].joined)
      last_change = stretches[i].step;
  }
  return {plan, phase.topology.get(), began, restarts ? std::max(began, last_change) : began};
}

std::optional<double> Trainer::bytes_sent() const {
  double bytes = 0.0;
  std::int64_t end = step_;
  for (std::size_t k = part_traffic_.size(); k-- > 0;) {
    const std::int64_t began = std::min(part(k).began, end);
    if (!part_traffic_[k]) return std::nullopt;
    bytes += *part_traffic_[k] * static_cast<double>(end - began);
    end = began;
  }
  return bytes;
}

std::size_t Trainer::part_of(std::int64_t t) const {
  std::size_t k = config_.sync.later.size();
  while (k > 0 && part(k).began > t) --k;
  return k;
}

void Trainer::open_part(std::size_t k) {
  part_ = k;
  const auto& [plan, topology, began, first] = part(k);
  Encoding encoding = plan.messages.encoding.value_or(Encoding());
  encoding.dtype = config_.device.dtype;
  // sync.exchange is for another part: this one's algorithm cannot encode, so it exchanges fp32.
  const bool whole = config_.sync.mixer.encodes && !plan.messages.encoding;
  mixer_ = (whole ? mixers().make("fp32", "sync.exchange") : config_.sync.mixer)
               .make(backend_, algorithm_transport(), encoding);
  std::function<void(int)> after_update;
  if (config_.state.lookahead) {
    after_update = [this](int bucket) {
      lookahead_->after_update(static_cast<std::size_t>(bucket), step_ + 1, length_.total_steps);
    };
  }
  gradients_ = {};
  algorithm_ = make_algorithm(plan, {.backend = backend_,
                                     .transport = algorithm_transport(),
                                     .mixer = *mixer_,
                                     .rule = *config_.optimizer.rule,
                                     .buckets = buckets_,
                                     .topology = topology,
                                     .clip = config_.optimizer.clip,
                                     .in_backward = config_.sync.in_backward,
                                     .overlap = config_.sync.overlap,
                                     .check_overflow = scaler_ != nullptr,
                                     .start_at_begin = graphs_.start_at_begin(),
                                     .groups = rule_groups(config_.optimizer, length_, first),
                                     .after_update = std::move(after_update),
                                     .gradients = &gradients_,
                                     .timeout_seconds = config_.sync.timeout_s,
                                     .replica = replica_.get(),
                                     .passes_exchange = norm_sums_ != nullptr,
                                     .find = std::bind_front(&Trainer::find_in_memory, this)});
  scheduler_ = std::make_unique<BucketScheduler>(plan_, buckets_, *algorithm_,
                                                 config_.optimizer.allow_unused);
  graphs_.attach(*algorithm_, *mixer_, tape_, buckets_);
}

void Trainer::close_part(const std::vector<Tensor>& parameters) {
  scheduler_.reset();
  algorithm_.reset();
  // The old buffers may be mapped by other ranks: continue in memory of this rank's own.
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    if (bucket.divided) {
      backend_.copy(parameters[b], bucket.own_part(bucket.parameters));
    } else if (replica_ && !replica_->shares_memory()) {
      backend_.copy(parameters[b], bucket.parameters);
    } else if (replica_) {
      backend_.copy(bucket.own_part(parameters[b]), bucket.own_part(bucket.parameters));
    } else {
      bucket.spare = parameters[b];
      bucket.flip();
      bucket.spare = Tensor();
    }
    bucket.sync.clear();
  }
  mixer_.reset();
}

void Trainer::switch_to(std::size_t k) {
  algorithm_->conclude();
  const double weight = algorithm_->mean_weight();
  std::vector<Tensor> parameters, states, others;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.divided) parameters.push_back(share_of(bucket.parameters, weight));
    for (const Tensor& state : bucket.states) states.push_back(own_states(bucket, state));
  }
  for (const ModelBuffer* buffer : config_.model->buffers()) {
    if (is_floating(buffer->value.dtype())) others.push_back(buffer->value);
  }
  std::vector<Tensor> means = mean_model(transport_, parameters);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.divided) continue;
    const Tensor whole = whole_in(replica_.get(), bucket, bucket.parameters);
    const std::vector<Tensor> mean = mean_model(transport_, {share_of(whole, weight)});
    means.emplace_back(backend_, Shape{bucket.own->elements}, whole.dtype());
    backend_.copy(bucket.own_part(mean[0]), means.back());
  }
  const std::vector<Tensor> state_means = mean_model(algorithm_transport(), states),
                            other_means = mean_model(transport_, others);
  // A replica's ranks share these states: none may overwrite them while another reads them.
  replica_barrier();
  for (std::size_t i = 0; i < states.size(); ++i) backend_.copy(state_means[i], states[i]);
  for (std::size_t i = 0; i < others.size(); ++i) backend_.copy(other_means[i], others[i]);
  backend_.synchronize();
  close_part(means);
  replica_barrier();
  refresh_low();
  if (scaler_ && transport_.size() > 1) {
    LossScaleState state = scaler_->settle();
    double most[2] = {-state.scale, static_cast<double>(state.optimizer_step)};
    transport_.world().max(most, 2);
    state.clean_steps = 0;  // equal on all ranks from here on
    state.scale = -most[0];
    state.optimizer_step = static_cast<std::int64_t>(most[1]);
    scaler_->restore(state);
  }
  open_part(k);
  log::info("step {}: from here on {}", step_, part(k).algorithm.label());
}

std::function<Tensor(const Shape&, DType)> Trainer::base_memory() {
  if (!config_.state.lora || backend_.device() != DeviceType::kCpu ||
      transport_.world().size() == 1)
    return {};
  const auto sharing = make_process_sharing(config_.sync.timeout_s);
  hosts_ = find_hosts(transport_.world(), sharing->host());
  if (!hosts_.any_share) return {};
  constexpr std::size_t kLine = 64;
  const auto taken = [](const Shape& shape, DType dtype) {
    return (static_cast<std::size_t>(shape.elements()) * size_of(dtype) + kLine - 1) / kLine *
           kLine;
  };
  std::size_t bytes = 0;
  config_.model->allocate_rest(meta_backend(), config_.device.dtype, config_.device.compute,
                               [&](const Shape& shape, DType dtype) {
                                 bytes += taken(shape, dtype);
                                 return Tensor(meta_backend(), shape, dtype);
                               });
  std::string refusal;
  const Tensor all = share_tensor(*sharing, transport_.world(), hosts_.local, backend_,
                                  Shape{static_cast<std::int64_t>(bytes)}, DType::kUInt8, refusal);
  if (!all) {
    if (transport_.rank() == 0)
      log::warning("each rank holds a copy of the base model of its own: {}", refusal);
    return {};
  }
  shares_base_ = true;
  return [all, taken, used = std::size_t{0}](const Shape& shape, DType dtype) mutable {
    const std::size_t at = used;
    used += taken(shape, dtype);
    return Tensor(all.storage(), at, shape, dtype);
  };
}

void Trainer::load_initial() {
  on_all_ranks(transport_, [&] {
    if (!config_.state.init.file.empty() && transport_.rank() == 0)
      config_.state.base_digest = load_initial_file(config_.state.init, *config_.model);
  });
}

void Trainer::broadcast_from_first(const Tensor& tensor, bool store) {
  std::vector<std::byte> bytes(tensor.bytes());
  if (transport_.rank() == 0) tensor.backend().copy_to_host(tensor, bytes.data());
  transport_.world().broadcast(bytes.data(), bytes.size(), 0);
  if (store && transport_.rank() != 0) tensor.backend().copy_from_host(bytes.data(), tensor);
}

void Trainer::refresh_low() {
  config_.model->refresh_low();
  for (const Bucket& bucket : buckets_) {
    if (bucket.divided) replica_->show(bucket, bucket.parameters, bucket.low, bucket.vectors);
  }
}

void Trainer::share_frozen() {
  if (transport_.size() == 1) return;
  const bool writes = !shares_base_ || hosts_.local.front() == transport_.rank();
  for (const Parameter* parameter : config_.model->parameters()) {
    const bool base = parameter->in == Parameter::In::kBase;
    if (parameter->trainable || (base && shares_base_ && hosts_.one_host)) continue;
    broadcast_from_first(parameter->value, !base || writes);
  }
  if (shares_base_) transport_.world().barrier();  // now every host has the complete base model
}

void Trainer::initialise() {
  std::optional<WholeValues> values(std::in_place, buckets_);
  // What a file has is not drawn first, which takes longer than to read it
  const InitialFile& init = config_.state.init;
  const auto draws = [&](const Parameter& parameter) {
    return init.file.empty() || parameter.in == Parameter::In::kAdapter ||
           keeps_own(init, *config_.model, parameter.name);
  };
  on_all_ranks(transport_, [&] {
    config_.model->initialise(
        config_.seed, first_samples(*config_.data.dataset, config_.model->first_samples()), draws);
  });
  load_initial();
  if (transport_.size() > 1) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) broadcast_from_first(values->of(b));
    for (const ModelBuffer* buffer : config_.model->buffers()) broadcast_from_first(buffer->value);
  }
  values->keep();
  values.reset();
  share_frozen();
  refresh_low();
  if (lookahead_) lookahead_->begin();
  if (config_.data.sampler->complexity() != Sampler::Complexity::kNone) {
    complexities_ = agree_on_complexities(*config_.data.dataset, config_.data.sampler->complexity(),
                                          transport_.world());
    config_.data.sampler->set_complexities(complexities_);
  }
  loader_->start(0, 0);
  // No rank may still set shared parameters when another starts to train them.
  replica_barrier();
  record_initial_checksums();
}

void Trainer::check_same_base(const SafetensorsFile& file, const std::string& source) const {
  if (transport_.rank() != 0) return;  // whose checkpoint names the base model
  if (const std::optional<Adapter> saved = described_adapter(file, source))
    check_base(*saved, source, config_.state.init.file, config_.state.base_digest);
}

void Trainer::resume(const SafetensorsFile& file, const std::string& source, bool after_loss) {
  // A checkpoint taken exactly at a switch belongs to the part that ends, unless it already holds
  // the mean over ranks.
  const std::int64_t step = steps_in(file, source),
                     of = is_mean_of_ranks(file) ? step : std::max<std::int64_t>(step, 1) - 1;
  if (const std::size_t k = part_of(of); k != part_) {
    std::vector<Tensor> fresh;
    for (const Bucket& bucket : buckets_) {
      fresh.emplace_back(backend_,
                         bucket.divided ? Shape{bucket.own->elements} : bucket.parameters.shape(),
                         bucket.parameters.dtype());
      backend_.fill(fresh.back(), 0.0);  // the padding, which no file has
    }
    close_part(fresh);
    open_part(k);
    replica_barrier();
  }
  if (config_.state.lora) {  // a checkpoint has no base
    load_initial();
    on_all_ranks(transport_, [&] { check_same_base(file, source); });
    share_frozen();
  }
  RunCounters counters;
  std::optional<WholeValues> values(std::in_place, buckets_);
  const bool mean = is_mean_of_ranks(file),  // one file, which every rank reads
      own_alone = replica_ && replica_->place() > 0 && (!mean || replica_->shares_memory());
  const bool by_complexity = config_.data.sampler->complexity() != Sampler::Complexity::kNone;
  on_all_ranks(transport_, [&] {
    counters = load_state(file, source, *config_.model, buckets_, *config_.optimizer.rule, !mean,
                          own_alone, replica_.get());
    if (by_complexity)
      complexities_ = load_complexities(file, source, config_.data.info.train_samples);
    if (average_) average_->load(file, source, own_alone);
    if (lookahead_) lookahead_->load(file, source, own_alone);
  });
  if (mean) values->keep();
  values.reset();
  if (replica_ && !mean) {
    share_state(file, source, buckets_, *config_.optimizer.rule, true, *replica_);
    if (average_) average_->share(file, source);
    if (lookahead_) lookahead_->share(file, source);
  }
  if (by_complexity) config_.data.sampler->set_complexities(complexities_);
  refresh_low();
  step_ = counters.step;
  for (std::int64_t t = 0; t < step_; ++t) largest_lr_ = std::max(largest_lr_, rate(t));
  if (transport_.rank() == 0) warn_of_changes(file, source);
  if (scaler_ && counters.loss_scale) scaler_->restore(*counters.loss_scale);
  losses_.reset(counters.loss_sum, counters.loss_count);
  seconds_ = counters.train_seconds;
  const RunLength::Place place = length_.place(step_);
  loader_epoch_ = place.epoch;
  size_loader(loader_epoch_);
  loader_->start(loader_epoch_, place.update * config_.length.accumulate);
  std::exception_ptr refusal;  // an error of this rank alone, which all ranks throw below
  try {
    const std::int64_t step = step_ - part(part_).first;
    after_loss ? algorithm_->resume_after_loss(step) : algorithm_->resume(step);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    ErrorParts parts = error.parts();
    parts.where.file = source;  // which the algorithm does not know
    refusal = std::make_exception_ptr(Error(error.code(), parts));
  }
  on_all_ranks(transport_, [&] {
    if (refusal) std::rethrow_exception(refusal);
  });
  in_memory_ = nullptr;
  record_initial_checksums();
}

double Trainer::rate(std::int64_t step) const {
  const Part of = part(part_of(step));
  const double batch = std::pow(length_.batch_ratio(step), config_.state.elastic.lr_power);
  const std::int64_t planned = length_.planned_step(step);
  const auto whose = [&] {
    return schedules().whose(config_.resolved["schedule"].value("type", ""));
  };
  const double lr = named("schedule", whose, [&] { return schedule_->lr(planned); });
  if (!std::isfinite(lr) || lr < 0.0) {
    fail(ExitCode::kUsage, "schedule", {.key = whose(), .step = step},
         "the rate of update {} is {}; it must be a number of 0 or more", planned, lr);
  }
  return lr * batch *
         (step - (step < of.first ? of.began : of.first) <
                  of.algorithm.equality.mean_gradients_before
              ? 1.0
              : config_.sync.lr_scale);
}

std::optional<double> Trainer::gradient_norm() const {
  // A replayed graph computes the norm again, but runs none of the host's code that records the
  // step: the number of the captured step is the one to use.
  const bool noted_once = backend_.device() != DeviceType::kCpu && !scaler_ && gradients_.squares;
  return gradients_.norm(noted_once ? gradients_.step : step_ - 1 - part(part_).first);
}

void Trainer::issue_step() {
  const TraceSpan span("step", std::to_string(step_ + 1));
  FlightRecorder::instance().note(FlightEvent::kStep, {.step = step_});
  const RunLength::Place place = length_.place(step_);
  const std::int64_t epoch_now = place.epoch;
  if (std::exchange(skipped_, false)) {
    losses_.drain();  // a LossRecord assumes consecutive steps
    size_loader(epoch_now);
    loader_->start(epoch_now, place.update * config_.length.accumulate);
    loader_epoch_ = epoch_now;
  } else if (epoch_now != loader_epoch_) {
    // Micro-batches that do not fill a group at an epoch's end are dropped.
    size_loader(epoch_now) ? loader_->start(epoch_now, 0) : loader_->skip_to_epoch(epoch_now);
    loader_epoch_ = epoch_now;
  }
  if (const std::size_t k = part_of(step_); k != part_) switch_to(k);
  lr_ = rate(step_);
  largest_lr_ = std::max(largest_lr_, lr_);
  StepInfo info{.step = step_ - part(part_).first,
                .optimizer_step = step_ + 1,
                .lr = lr_,
                .largest_lr = largest_lr_};
  if (graphs_.start_at_begin()) settle_scale(info);
  gradients_.wanted =
      (step_ + 1) % config_.output.log_every == 0 || step_ + 1 == length_.total_steps;
  for (std::int64_t index = 0; index < config_.length.accumulate; ++index) {
    const MicroBatch micro{index, index == 0, index + 1 == config_.length.accumulate};
    loader_->advance();
    const auto work = [&] { return forward_backward(micro, info); };
    losses_.add(graphs_.run(micro, info, dropout_counter(micro), work), step_, micro.first);
  }
  loader_->upload_ahead();
  ++step_;
  steps_to_skip_ = algorithm_->take_left_out();
  for (Algorithm::Meeting& meeting : algorithm_->take_meetings()) {
    meeting.step += part(part_).first;
    meetings_.push_back(std::move(meeting));
  }
  if (lookahead_) lookahead_->after_step(step_, length_.total_steps);
  if (average_ && step_ % config_.state.ema->every == 0) {
    // An all-gather through host memory overwrites the whole bucket: let it end before the average
    // reads that.
    if (!buckets_.front().divided) scheduler_->before_reads();
    average_->after_step(step_);
  }
  if (scaler_) scaler_->posted(algorithm_->control(), step_);
}

Tensor Trainer::forward_backward(const MicroBatch& micro, StepInfo& info) {
  const Batch& batch = loader_->make();
  if (norm_sums_) norm_sums_->begin_step(step_);
  BucketReads reads(*scheduler_);
  Pass pass{
      .backend = backend_,
      .tape = &tape_,
      .training = true,
      .dropout_key = config_.seed,
      .dropout_counter = dropout_counter(micro),
      .recompute = config_.device.recompute.value_or(Pass::usual_recompute(backend_.device())),
      .extensions = {norm_sums_.get(), replica_ ? &reads : nullptr}};
  if (config_.device.check_numbers) watch_numbers(batch, pass);
  // A graph holds one micro-batch and whole exchanges, so these start in the last one.
  if (graphs_.start_at_begin() && micro.last) scheduler_->begin_step(info);
  PassSteps steps{.share = 1.0 / static_cast<double>(config_.length.accumulate),
                  .first = micro.first,
                  .last = micro.last};
  steps.before_loss = [&] {
    scheduler_->before_reads();  // the loss may read a parameter, too
    // As late as possible: meanwhile the device still has the forward pass to compute.
    if (micro.first) settle_scale(info);
    pass.loss_scale = info.loss_scale;
  };
  steps.before_backward = [&](const Variable& loss) {
    if (config_.device.check_numbers)
      check_finite(loss.value(), "loss", "its value", transport_.rank(), step_ + 1);
    if (!graphs_.start_at_begin() && micro.first) scheduler_->begin_step(info);
  };
  if (micro.last)
    steps.backward = [&](const std::function<void()>& run) { scheduler_->backward(run); };
  Tensor loss = training_pass(*config_.task, *config_.model, batch, pass, steps);
  if (micro.last) {
    if (!backend_.capturing()) loader_->upload_ahead();  // before a wait for an exchange
    scheduler_->end_backward();
  }
  return loss;
}

void Trainer::settle_scale(StepInfo& info) {
  if (!scaler_) return;
  const LossScaleState& state = scaler_->settle();
  info.optimizer_step = state.optimizer_step;
  info.loss_scale = state.scale;
}

/// Distinct per step, micro-batch and rank; layers count up in the lower bits.
std::uint64_t Trainer::dropout_counter(const MicroBatch& micro) const {
  return static_cast<std::uint64_t>((step_ * config_.length.accumulate + micro.index) *
                                        transport_.size() +
                                    transport_.rank())
         << 24;
}

SafetensorsFile Trainer::state(SafetensorsFile used, bool copies) {
  const bool member = replica_ && replica_->place() > 0;  // its replica's first rank saves the rest
  const PutTensor
      name_alone = [](const Tensor&, TensorLayout, FileTensor&tensor) { tensor = {}; },
      put = member ? name_alone
            // gathered tensors would stay allocated until the file is written: copy each at once
            : copies || (replica_ && !replica_->shares_memory())
                ? static_cast<PutTensor>(to_file_tensor)
                : refer_file_tensor;
  SafetensorsFile file = make_state(std::move(used), put,
                                    member ? name_alone : static_cast<PutTensor>(to_file_tensor));
  if (member) refer_to_first_rank(replica_->index() * replica_->size(), file);
  return file;
}

SafetensorsFile Trainer::make_state(SafetensorsFile used, PutTensor put, PutTensor put_copies) {
  RunCounters counters{step_, losses_.sum(), losses_.count(), seconds_, std::nullopt};
  if (scaler_) counters.loss_scale = scaler_->settle();
  scheduler_->before_reads();
  const OptimizerRule& rule = *config_.optimizer.rule;
  SafetensorsFile file =
      save_state(*config_.model, buckets_, rule, counters, config_.resolved, transport_.size(),
                 config_.device.compute, std::move(used), put, replica_.get());
  if (!complexities_.empty()) save_complexities(complexities_, file);
  if (average_) average_->save(file, put_copies);
  if (lookahead_) lookahead_->save(file, put_copies);
  save_stretches(config_.length.stretches, file);
  save_contents(config_.data.info, file);
  file.metadata["mean_weight"] = fmt::format("{:a}", algorithm_->mean_weight());
  file.metadata[kThreads] = threads_text();
  if (transport_.rank() != 0) return file;
  describe_model(config_, step_, file);
  nlohmann::json mean = nlohmann::json::object();
  if (const EvaluatedModel tested = rule.facts().evaluated; tested.state >= 0)
    mean = {{"state", rule.facts().states[static_cast<std::size_t>(tested.state)]},
            {"weight", tested.weight}};
  if (algorithm_->mean_weight() != 1.0) {
    for (const Parameter* parameter : config_.model->parameters()) {
      if (parameter->trainable) mean["weighted"].push_back(parameter->name);
    }
  }
  if (!mean.empty()) file.metadata[kMeanMetadata] = mean.dump();
  return file;
}

void Trainer::refer_to_first_rank(int first, SafetensorsFile& file) const {
  std::set<std::string> own;
  for (const ModelBuffer* buffer : config_.model->buffers()) {
    for (const char* prefix : {"model.", "ema.", "lookahead."}) own.insert(prefix + buffer->name);
    to_file_tensor(buffer->value, TensorLayout::kPlain, file.tensors["model." + buffer->name]);
  }
  for (const SyncState& state : buckets_.front().sync) {
    if (state.numbers.elements() == buckets_.front().layout->elements) continue;
    own.insert("sync." + state.name);
    to_file_tensor(state.numbers, TensorLayout::kPlain, file.tensors["sync." + state.name]);
  }
  std::map<std::string, int> elsewhere;
  for (const auto& [name, tensor] : file.tensors) {
    if (!own.contains(name)) elsewhere[name] = first;
  }
  std::erase_if(file.tensors, [&](const auto& entry) { return elsewhere.contains(entry.first); });
  file.metadata[kSharedTensors] = nlohmann::json(elsewhere).dump();
}

std::optional<SafetensorsFile> Trainer::handover_state() {
  if (!algorithm_) return std::nullopt;
  const Part now = part(part_);
  const std::int64_t met = algorithm_->met() > 0 ? now.first + algorithm_->met() : 0;
  step_ = std::max(step_, met);
  backend_.synchronize();
  const PutTensor put = backend_.device() == DeviceType::kCpu
                            ? refer_file_tensor
                            : static_cast<PutTensor>(to_file_tensor);
  std::optional<SafetensorsFile> file = make_state({}, put, put);
  if (replica_ && replica_->place() > 0)
    std::erase_if(file->tensors, [](const auto& entry) {
      const ReferredTensor* own = ReferredTensor::in(entry.second);
      return own && is_shared(own->tensor);
    });
  const AlgorithmEquality& equality = now.algorithm.equality;
  if (equality.any()) file->metadata[kLastSynchronised] = std::to_string(met);
  bool alike = false;
  for (int b = 0; equality.after && b < static_cast<int>(buckets_.size()); ++b)
    alike = alike || equality.after(step_ - now.first, b, static_cast<int>(buckets_.size()));
  if (alike) file->metadata[kRanksEqual] = "1";
  if (step_ == now.first) file->metadata[kAtFirstStep] = "1";
  return file;
}

void Trainer::recalibrate_norms(MeanModelScope& shown) {
  if (config_.sync.recalibrate_batches == 0) return;
  on_all_ranks(transport_, [&] {
    if (!norm_loader_)
      norm_loader_ = std::make_unique<Loader>(*config_.data.dataset, loader_settings(false),
                                              backend_, config_.device.compute);
    norm_loader_->start(0, 0);  // the same batches at every test, whatever training has come to
    recalibrate(*config_.task, *config_.model, *norm_loader_, config_.sync.recalibrate_batches,
                config_.seed, backend_);
  });
  shown.average_buffers();
}

EvaluationResult Trainer::test(const TestedModels& meanwhile) {
  const double weight = algorithm_->mean_weight();
  scheduler_->before_reads();
  // The moving average is divided among the replica's ranks: wait until each has updated its part.
  replica_barrier();
  EvaluationResult of_average;
  if (average_) {
    MeanModelScope shown(*config_.model, buckets_, backend_, transport_, replica_.get(), weight,
                         average_->parameters(), average_->buffers());
    recalibrate_norms(shown);
    of_average = evaluate(*config_.task, *config_.model, *evaluation_loader_, backend_, transport_,
                          counts_confusions(config_.data.info, *config_.model), meanwhile.stop);
    if (of_average.stopped) return of_average;
    if (meanwhile.average) meanwhile.average();
  }
  // Every group's rule says the same: the config's reader sees to it.
  MeanModelScope mean(*config_.model, buckets_, backend_, transport_, replica_.get(), weight,
                      config_.optimizer.rule->facts().evaluated);
  recalibrate_norms(mean);
  EvaluationResult result =
      evaluate(*config_.task, *config_.model, *evaluation_loader_, backend_, transport_,
               counts_confusions(config_.data.info, *config_.model), meanwhile.stop);
  if (result.stopped) return result;
  result.consensus_distance = mean.consensus_distance();
  result.bucket_consensus = mean.bucket_consensus();
  for (MetricValue& value : of_average.values) {
    value.name = "ema_" + value.name;
    result.values.push_back(std::move(value));
  }
  if (meanwhile.mean) meanwhile.mean(result);
  return result;
}

bool Trainer::step() {
  if (steps_to_skip_ > 0) {
    --steps_to_skip_;
    ++step_;
    skipped_ = true;
    return false;
  }
  try {
    named(
        "trainer", [&] { return fmt::format("step {}", step_ + 1); }, [&] { issue_step(); });
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMemory || activation_bytes_ == 0) throw;
    // An estimate: what is reserved so far is all that the device has, and only activations grow
    // with the batch size.
    const auto capacity = static_cast<double>(backend_.memory_stats().reserved);
    const double sample =
        static_cast<double>(activation_bytes_) / static_cast<double>(config_.length.batch_size);
    const auto fits = static_cast<std::int64_t>(
        0.95 * (capacity - static_cast<double>(resident_bytes_)) / sample);
    const RankLayout site{transport_.size(), transport_.world().local_size(), replica_size()};
    std::vector<std::string> others = what_fits(config_, site, 0.95 * capacity);
    if (others.empty() && config_.device.recompute != Recompute::kBlock &&
        config_.model->has_blocks())
      others.emplace_back("\"recompute\": \"block\" takes less memory");
    fail(ExitCode::kMemory, error.parts().component, {.step = step_ + 1},
         "{}; step {} with batch_size {}: {}{}", error.message(), step_ + 1,
         config_.length.batch_size,
         fits >= 1 && config_.length.batch_size > 1
             ? fmt::format("a batch_size of about {} would fit",
                           std::min(fits, config_.length.batch_size - 1))
             : "not even a batch_size of 1 would fit, so the model is too large for this device",
         others.empty() ? "" : fmt::format("; {}", fmt::join(others, "; ")));
  }
}

}  // namespace starling
