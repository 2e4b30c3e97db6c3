#include "apps/training/joining.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <tuple>

#include "apps/data/collate.h"
#include "apps/inference/description.h"
#include "apps/inference/model_file.h"
#include "apps/training/beginning.h"
#include "apps/training/config/given_config.h"
#include "apps/training/device/device.h"
#include "apps/training/output/output_file.h"
#include "apps/training/output_folder.h"
#include "apps/training/state/data_contents.h"
#include "apps/training/state/elastic.h"
#include "apps/training/state/training_state.h"
#include "apps/training/trainer.h"
#include "apps/training/training_run.h"
#include "apps/training/world_check.h"
#include "comm/shared/shared_tensor.h"
#include "comm/zeromq/transport.h"
#include "core/checksum.h"
#include "core/console.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/host.h"
#include "core/quantity.h"
#include "core/running_clock.h"
#include "core/text.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSecret = "/secret";
constexpr const char* kStretches = "stretches";  // save_stretches()
constexpr std::size_t kMostHeaderBytes = 64u << 20, kHandoverChunkBytes = 16u << 20;
/// Marks a joiner's state that it fetched before it was admitted.
constexpr const char* kPrefetched = "handed_over_ahead";
constexpr auto kSecondsToRegroup = std::chrono::seconds(10),
               kPollInterval = std::chrono::seconds(1);

/// Whether a tensor is meaningless for another number of ranks.
bool depends_on_rank_count(const std::string& name) {
  return name.starts_with("sync.residual_mean");
}
/// Whether it belongs to the rank that has sent the state: what that has sent, or is yet to send.
bool is_sender_specific(const std::string& name) {
  return name.starts_with("sync.residual") || name.starts_with("sync.carried");
}

void clear(SafetensorsFile& state, bool (*which)(const std::string&)) {
  for (auto& [name, tensor] : state.tensors) {
    if (!which(name)) continue;
    if (const ReferredTensor* own = ReferredTensor::in(tensor))
      std::memset(own->tensor.raw(), 0, own->tensor.bytes());
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{});
  }
}

/// A state's memory, which travels as it lies: that of tensors which it refers to, each buffer
/// once, with where they lie in it; then other tensors' bytes.
struct Blocks {
  std::vector<std::shared_ptr<Storage>> buffers;
  /// (buffer, offset) of each tensor that is referred to, by name
  std::map<std::string, std::pair<std::size_t, std::size_t>> places;

  explicit Blocks(const SafetensorsFile& state) {
    std::map<const Storage*, std::size_t> known;
    for (const auto& [name, tensor] : state.tensors) {
      const ReferredTensor* own = ReferredTensor::in(tensor);
      if (!own) continue;
      const std::shared_ptr<Storage>& storage = own->tensor.storage();
      const auto [at, fresh] = known.try_emplace(storage.get(), buffers.size());
      if (fresh) buffers.push_back(storage);
      places[name] = {at->second, static_cast<std::size_t>(own->tensor.raw() - storage->data())};
    }
  }
};

std::string header_of(const SafetensorsFile& state, const Blocks& blocks) {
  nlohmann::json tensors = nlohmann::json::object(), buffers = nlohmann::json::array();
  for (const auto& buffer : blocks.buffers) buffers.push_back(buffer->bytes());
  for (const auto& [name, tensor] : state.tensors) {
    const ReferredTensor* own = ReferredTensor::in(tensor);
    const Shape& shape = own ? own->tensor.shape() : tensor.shape;
    const std::span<const std::int64_t> sizes = shape.sizes();
    auto& form = tensors[name];
    form = {static_cast<int>(tensor.dtype), std::vector(sizes.begin(), sizes.end())};
    if (!own) continue;
    const auto& [buffer, offset] = blocks.places.at(name);
    form.insert(form.end(), {static_cast<int>(own->layout), buffer, offset});
  }
  return nlohmann::json{{"metadata", state.metadata}, {"buffers", buffers}, {"tensors", tensors}}
      .dump();
}

/// What others fetch of it. It must not change any more.
OfferedState bytes_of(std::shared_ptr<const SafetensorsFile> state) {
  struct Bytes {
    std::shared_ptr<const SafetensorsFile> state;
    Blocks blocks;
    std::string head;
    std::map<std::uint64_t, std::span<const std::byte>> parts;  ///< by where they begin
  };
  const SafetensorsFile& of = *state;
  const auto all = std::make_shared<Bytes>(Bytes{std::move(state), Blocks(of), {}, {}});
  const std::string header = header_of(of, all->blocks);
  const std::uint64_t length = header.size();
  all->head.assign(reinterpret_cast<const char*>(&length), sizeof length);
  all->head += header;
  std::uint64_t bytes = all->head.size();
  all->parts[0] = std::as_bytes(std::span(all->head));
  const auto add = [&](std::span<const std::byte> part) {
    if (!part.empty()) all->parts[bytes] = part;
    bytes += part.size();
  };
  for (const auto& buffer : all->blocks.buffers) add({buffer->data(), buffer->bytes()});
  for (const auto& [name, tensor] : of.tensors) add(tensor.bytes);
  return {bytes, [all](std::uint64_t offset, std::byte* to, std::size_t count) {
            for (auto part = std::prev(all->parts.upper_bound(offset)); count > 0; ++part) {
              const std::size_t before = offset - part->first,
                                taken = std::min(count, part->second.size() - before);
              std::memcpy(to, part->second.data() + before, taken);
              offset += taken, to += taken, count -= taken;
            }
          }};
}

/// The state that a header announces, with memory of `host` for it: `places`, in the order in which
/// its bytes come. There are `bytes` of them.
SafetensorsFile read_header(std::string_view text, std::uint64_t bytes, int from, Backend& host,
                            std::deque<std::span<std::byte>>& places) {
  SafetensorsFile state;
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::kLost, "join", "rank {} has sent a state that cannot be read: {}", from, why);
  };
  try {
    const auto header = nlohmann::json::parse(text);
    state.metadata = header.at("metadata").get<std::map<std::string, std::string>>();
    const auto sizes = header.at("buffers").get<std::vector<std::uint64_t>>();
    std::uint64_t left = bytes;
    const auto take = [&](std::uint64_t part) {
      if (part > left) refuse(fmt::format("it announces more than its {} bytes", bytes));
      left -= part;
    };
    std::vector<std::shared_ptr<Storage>> buffers;
    for (const std::uint64_t size : sizes) {
      take(size);
      buffers.push_back(
          Tensor(host, Shape{static_cast<std::int64_t>(size)}, DType::kUInt8).storage());
      places.emplace_back(buffers.back()->data(), size);
    }
    for (const auto& [name, form] : header.at("tensors").items()) {
      const auto dtype = form.at(0).get<unsigned>();
      const auto shape = form.at(1).get<std::vector<std::int64_t>>();
      double elements = 1.0;
      for (const std::int64_t size : shape) elements *= size < 0 ? -1.0 : static_cast<double>(size);
      if (dtype > static_cast<unsigned>(DType::kUInt8) || elements < 0.0 ||
          shape.size() > Shape::kMaxRank || elements > static_cast<double>(bytes))
        refuse(fmt::format("its tensor {} has an unknown form, {}", shown(name),
                           shown(form.dump(), 100)));
      FileTensor& tensor = state.tensors[name];
      tensor = {static_cast<DType>(dtype), Shape(std::span(shape)), {}};
      const std::size_t size =
          static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
      if (form.size() == 2) {
        take(size);
        tensor.bytes.resize(size);
        places.emplace_back(tensor.bytes);
        continue;
      }
      const auto layout = form.at(2).get<unsigned>();
      const auto buffer = form.at(3).get<std::size_t>();
      const auto offset = form.at(4).get<std::uint64_t>();
      if (layout > static_cast<unsigned>(TensorLayout::kTransposed) || buffer >= buffers.size() ||
          offset % size_of(tensor.dtype) != 0 || offset > sizes[buffer] ||
          size > sizes[buffer] - offset)
        refuse(fmt::format("its tensor {} lies at {}", shown(name), shown(form.dump(), 100)));
      refer_file_tensor(Tensor(buffers[buffer], offset, tensor.shape, tensor.dtype),
                        static_cast<TensorLayout>(layout), tensor);
    }
    if (left != 0) refuse(fmt::format("it has {} bytes more than its tensors", left));
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  return state;
}

/// The reader of offered_state()'s bytes, which arrive in order.
class StateReader {
 public:
  /// `host` has the state's memory.
  StateReader(int from, Backend& host) : from_(from), host_(&host) {}
  void add(std::uint64_t bytes, std::string_view piece) {
    remaining_ = bytes - received_ - piece.size();
    received_ += piece.size();
    while (!piece.empty()) {
      if (!state_) {
        std::uint64_t length = sizeof length;
        if (header_.size() >= sizeof length) std::memcpy(&length, header_.data(), sizeof length);
        const bool counted = header_.size() >= sizeof length;
        if (counted && length > kMostHeaderBytes)
          fail(ExitCode::kLost, "join",
               "rank {} announces a state whose list of tensors has {} bytes", from_, length);
        const std::size_t wanted = counted ? sizeof length + length : sizeof length,
                          taken = std::min(piece.size(), wanted - header_.size());
        header_.append(piece.substr(0, taken));
        piece.remove_prefix(taken);
        if (counted && header_.size() == wanted)
          state_ = read_header(std::string_view(header_).substr(sizeof length), bytes - wanted,
                               from_, *host_, destinations_);
      } else if (filled_ == destinations_.front().size()) {
        destinations_.pop_front();
        filled_ = 0;
      } else {
        const std::size_t taken = std::min(piece.size(), destinations_.front().size() - filled_);
        std::memcpy(destinations_.front().data() + filled_, piece.data(), taken);
        piece.remove_prefix(taken);
        filled_ += taken;
      }
    }
  }
  bool complete() const { return state_ && remaining_ == 0; }
  /// Clears what belongs to the sender alone.
  SafetensorsFile take() {
    clear(*state_, is_sender_specific);
    state_->metadata["loss_sum"] = state_->metadata["loss_count"] = "0";
    return std::move(*state_);
  }

 private:
  int from_;
  Backend* host_;
  std::uint64_t received_ = 0, remaining_ = 1;
  std::string header_;  ///< the header's length, and the header
  std::optional<SafetensorsFile> state_;
  std::deque<std::span<std::byte>> destinations_;  ///< of what is not complete
  std::size_t filled_ = 0;                         ///< bytes of the first one
};

/// Merges the ranks' metadata into one entry for each replica: null if one of its ranks has just
/// joined, or if some of them alone have taken an outer step. They can differ in nothing else: a
/// rank ends a step only after the others did, though the loss of a rank may have kept these from
/// counting it.
std::vector<nlohmann::json> by_replica(std::vector<nlohmann::json> ranks, int replica) {
  if (replica == 1) return ranks;
  const auto steps = [](const nlohmann::json& of) {
    return std::atoll(of.value("step", "0").c_str());
  };
  std::vector<nlohmann::json> all;
  for (auto first = ranks.begin(); first != ranks.end(); first += replica) {
    const auto end = first + replica;
    const bool whole = std::all_of(first, end, [&](const nlohmann::json& of) {
      return of.is_object() && !of.contains(kPrefetched) &&
             of.value(Trainer::kLastSynchronised, "") ==
                 first->value(Trainer::kLastSynchronised, "");
    });
    all.push_back(
        whole ? *std::max_element(first, end,
                                  [&](const auto& a, const auto& b) { return steps(a) < steps(b); })
              : nullptr);
    if (whole &&
        std::any_of(first, end, [](const auto& of) { return of.contains(TrainingRun::kLost); }))
      all.back()[TrainingRun::kLost] = "1";
  }
  return all;
}

/// Only its owner can read the file (mode 0600), from before the first byte is written.
void write_secret(const std::string& path, const std::string& secret) {
  if (read_file(path, secret.size()).text == secret) return;
  std::error_code none;
  fs::remove(path, none);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const bool written =
      file >= 0 && ::fchmod(file, 0600) == 0 &&
      ::write(file, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!written) fail_output("write", path, error);
}

}  // namespace

std::map<std::string, std::string> identity_of_joiners(const TrainConfig& config,
                                                       const std::vector<Parameter*>& parameters) {
  auto identity = identity_of(config.written, contents_of(config.data.info), parameters);
  ModelDescription description;
  config.data.info.collate().describe(config.data.info, description);
  identity["tokenizer"] = checksum(description.tokenizer);
  return identity;
}

std::string why_cannot_grow(const TrainOptions& options, const TrainConfig& config,
                            const RankLayout& site, std::int64_t step) {
  const int replica = site.replica;
  const RankLayout more{site.ranks + replica, site.ranks_per_node + replica, replica};
  TrainOptions elastic = options;
  elastic.elastic = elastic.dry_run = true;
  try {
    TrainConfig other = read_for_ranks(elastic, more, false);
    other.data.info.train_samples = config.data.info.train_samples;
    other.data.info.test_samples = config.data.info.test_samples;
    std::vector<Stretch> stretches = config.length.stretches;
    if (stretches.empty())
      stretches = {
          {.ranks = site.replicas().ranks, .batch_size = config.length.batch_size * replica}};
    other.length.stretches = continued(std::move(stretches), step, more.replicas().ranks,
                                       config.state.elastic, 0, replica);
    other.length.batch_size = other.length.stretches.back().batch_size / replica;
    check_data_size(other, source_of(options), more);
  } catch (const Error& error) {
    return fmt::format("the run cannot continue with {} ranks: {}", more.ranks, error.message());
  }
  return {};
}

void load_deferred_tensors(SafetensorsFile& state) {
  for (auto& [name, tensor] : state.tensors) {
    const ReferredTensor* own = ReferredTensor::in(tensor);
    if (!own || !is_shared(own->tensor)) continue;
    std::vector<std::byte> buffer;
    const std::span<const std::byte> bytes = tensor.source(buffer);
    if (buffer.empty()) buffer.assign(bytes.begin(), bytes.end());
    tensor.bytes = std::move(buffer);
    tensor.source = nullptr;
  }
}

std::string job_file(const std::string& folder) { return folder + "/job.json"; }

void publish_job(const std::string& folder, const TrainConfig& config,
                 const Membership& membership) {
  const auto& transport = config.resolved["sync"]["transport"];
  if (transport.value("secret", "").empty()) write_secret(folder + kSecret, membership.secret());
  auto job = nlohmann::json::parse(membership.roster());
  job["config"] = config.written;
  const std::string text = job.dump(2) + "\n";
  write_file_atomically(job_file(folder), text.data(), text.size());
}

void withdraw_job(const std::string& folder) {
  std::error_code none;
  fs::remove(job_file(folder), none);
  fs::remove(folder + kSecret, none);
}

std::future<StateMemory> memory_for(const SafetensorsFile& state, Backend& backend) {
  std::vector<std::size_t> sizes;
  for (const auto& buffer : Blocks(state).buffers) sizes.push_back(buffer->bytes());
  return std::async(std::launch::async, [sizes, &backend] {
    StateMemory memory;
    for (const std::size_t size : sizes) {
      memory.emplace_back(backend, Shape{static_cast<std::int64_t>(size)}, DType::kUInt8);
      std::memset(memory.back().raw(), 0, size);
    }
    return memory;
  });
}

OfferedState offered_state(SafetensorsFile state, StateMemory memory) {
  const Blocks blocks(state);
  memory.resize(blocks.buffers.size());
  for (std::size_t k = 0; k < blocks.buffers.size(); ++k) {
    const Storage& buffer = *blocks.buffers[k];
    // After a switch it may be another size
    if (!memory[k] || memory[k].bytes() != buffer.bytes())
      memory[k] =
          Tensor(buffer.backend(), Shape{static_cast<std::int64_t>(buffer.bytes())}, DType::kUInt8);
    std::memcpy(memory[k].raw(), buffer.data(), buffer.bytes());
  }
  for (const auto& [name, place] : blocks.places) {
    FileTensor& tensor = state.tensors[name];
    const ReferredTensor own = *ReferredTensor::in(tensor);
    refer_file_tensor(
        Tensor(memory[place.first].storage(), place.second, own.tensor.shape(), own.tensor.dtype()),
        own.layout, tensor);
  }
  return bytes_of(std::make_shared<const SafetensorsFile>(std::move(state)));
}

std::shared_ptr<Membership> ask_to_join(TrainOptions& options, double& timeout_seconds,
                                        std::shared_ptr<Backend>& host,
                                        std::optional<SafetensorsFile>& state) {
  const std::string run = options.join;
  options.config = job_file(run);
  options.output = run;
  options.resume = "latest";
  options.elastic = true;
  const FileText job = read_file(options.config, kMostHeaderBytes);
  if (!job.fault.empty())
    fail(ExitCode::kUsage, "join", {.file = options.config},
         "{}; no run is going on there, or none with \"elastic\": {{\"join\": true}}", job.fault);
  const auto parsed = nlohmann::json::parse(job.text, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("members") || !parsed["members"].is_array())
    fail(ExitCode::kUsage, "join", {.file = options.config},
         "is not a job.json as a run writes it; pass the folder of a run");
  // A replica's ranks are let in together
  const auto told = parsed.find("replica");
  const int replica =
      told != parsed.end() && told->is_number_integer() ? std::max(told->get<int>(), 1) : 1;
  const RankLayout site{static_cast<int>(parsed["members"].size()), replica};
  TrainConfig config = read_for_ranks(options, site, false);
  const ShapeTrace trace = trace_shapes(config);
  open_data(options, config, site);
  const auto& transport = config.resolved["sync"]["transport"];
  ZeroMqSettings settings{
      .port = transport.value("port", 0),
      .interface = transport.value("interface", ""),
      .secret = !options.secret.empty() ? options.secret : transport.value("secret", ""),
      .identity = identity_of_joiners(config, trace.ready_order)};
  if (settings.secret.empty()) settings.secret = run + kSecret;
  timeout_seconds = config.sync.timeout_s;
  const auto here = [](const nlohmann::json& member) {
    return member.is_object() && member.value("host", "") == host_name();
  };
  const auto neighbours = std::ranges::count_if(parsed["members"], here);
  host = open_backend(DeviceType::kCpu,
                      compute_threads(config.device, static_cast<int>(neighbours) + replica));
  say("asks to join {}, a run on {}{}\n", run, counted(site.ranks, "rank"),
      replica > 1 ? fmt::format(", in replicas: is let in when {} of this host have asked", replica)
                  : "");
  for (std::string asked = job.text;;) {
    StateReader reader(0, *host);
    RunningClock::time_point begin;
    const auto take = [&](std::uint64_t bytes, std::uint64_t offset, std::string_view piece) {
      if (offset == 0) {
        reader = StateReader(0, *host);
        begin = RunningClock::now();
      }
      reader.add(bytes, piece);
      if (reader.complete())
        say("has a copy of rank 0's state, {} in {}\n", quantity(static_cast<double>(bytes), "B"),
            quantity(RunningClock::seconds_since(begin), "s"));
    };
    try {
      auto membership = join_zeromq_job(asked, settings, timeout_seconds, take);
      if (reader.complete()) {
        state = reader.take();
        state->metadata[kPrefetched] = "1";
      }
      return membership;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kLost) throw;
      // If rank 0 was lost, the others write a new job.json within seconds: look for it.
      const auto limit = RunningClock::now() + kSecondsToRegroup;
      std::string now = asked;
      while (now == asked && RunningClock::now() < limit) {
        std::this_thread::sleep_for(kPollInterval);
        const FileText file = read_file(options.config, kMostHeaderBytes);
        if (file.fault.empty()) now = file.text;
      }
      if (now == asked) throw;
      asked = std::move(now);
    }
  }
}

std::optional<Handover> plan_handover(const SafetensorsFile* own_state, const TrainConfig& config,
                                      World& world) {
  nlohmann::json mine;
  if (own_state) {
    for (const char* key : {"step", "ranks", kStretches, kPrefetched, Trainer::kLastSynchronised,
                            Trainer::kRanksEqual, Trainer::kAtFirstStep, TrainingRun::kLost,
                            TrainingRun::kOwesTest, TrainingRun::kEarlyStopping}) {
      if (const auto entry = own_state->metadata.find(key); entry != own_state->metadata.end())
        mine[key] = entry->second;
    }
  }
  const auto number = [](const nlohmann::json& of, const char* key) {
    return of.contains(key) ? std::atoll(of[key].get<std::string>().c_str()) : 0;
  };
  std::vector<nlohmann::json> all;
  for (const std::string& text :
       world.size() == 1 ? std::vector{mine.dump()} : world.all_gather(mine.dump()))
    all.push_back(nlohmann::json::parse(text));
  all = by_replica(std::move(all), config.sync.replica);
  const auto place = [&](const nlohmann::json& of) {
    return std::tuple(number(of, Trainer::kLastSynchronised), number(of, "step"),
                      of.contains(Trainer::kAtFirstStep));
  };
  const int size = static_cast<int>(all.size());
  Handover handover{.replica = config.sync.replica};
  const nlohmann::json* newest = nullptr;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].is_null() || all[rank].contains(kPrefetched)) continue;
    handover.after_loss = handover.after_loss || all[rank].contains(TrainingRun::kLost);
    if (newest && place(all[rank]) < place(*newest)) continue;
    newest = &all[rank];
    handover.from = static_cast<int>(rank);
  }
  if (!newest) return std::nullopt;
  handover.step = number(*newest, "step");
  handover.begins = handover.after_loss && newest->contains(Trainer::kAtFirstStep);
  // Ranks that were bitwise equal no longer are, once some have begun the next step.
  const bool alike =
      handover.begins || (handover.after_loss && newest->contains(Trainer::kRanksEqual));
  bool owes_test = false;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const nlohmann::json& of = all[rank];
    const bool behind = of.is_null() || number(of, Trainer::kLastSynchronised) !=
                                            number(*newest, Trainer::kLastSynchronised);
    if (static_cast<int>(rank) != handover.from && (behind || alike))
      handover.to.push_back(static_cast<int>(rank));
    owes_test = owes_test || (!behind && number(of, "step") == handover.step &&
                              of.contains(TrainingRun::kOwesTest));
  }
  for (const char* key :
       {"step", Trainer::kLastSynchronised, Trainer::kRanksEqual, Trainer::kAtFirstStep,
        TrainingRun::kEarlyStopping, TrainingRun::kOwesTest}) {
    auto& entry = handover.metadata[key];
    if (newest->contains(key)) entry = (*newest)[key].get<std::string>();
  }
  if (owes_test) handover.metadata[TrainingRun::kOwesTest] = "1";
  handover.metadata[kPrefetched];
  SafetensorsFile first;
  if (newest->contains(kStretches)) first.metadata[kStretches] = (*newest)[kStretches];
  handover.stretches =
      saved_stretches(first, fmt::format("the state of rank {}", handover.from * handover.replica));
  const auto made = static_cast<int>(number(*newest, "ranks")) / handover.replica;
  handover.other_ranks = made != size || !handover.to.empty();
  if (made == size) return handover;
  if (handover.stretches.empty())
    handover.stretches = {
        {.ranks = made, .batch_size = config.length.batch_size * handover.replica}};
  handover.stretches = continued(std::move(handover.stretches), handover.step, size,
                                 config.state.elastic, 0, handover.replica);
  handover.stretches.back().joined = true;
  return handover;
}

void hand_over(const Handover& handover, std::optional<SafetensorsFile>& state, Backend& backend,
               Transport& transport) {
  const int rank = transport.rank() / handover.replica, place = transport.rank() % handover.replica;
  const auto ranks_of = [&](std::vector<int> replicas) {
    for (int& one : replicas) one = one * handover.replica + place;
    return replicas;
  };
  const bool sends = rank == handover.from && !handover.to.empty(),
             receives = std::count(handover.to.begin(), handover.to.end(), rank) > 0;
  const auto adopt = [&] {
    if (handover.other_ranks) clear(*state, depends_on_rank_count);
    for (const auto& [key, value] : handover.metadata) {
      if (value)
        state->metadata[key] = *value;
      else
        state->metadata.erase(key);
    }
    if (handover.begins) mark_as_mean_of_ranks(*state, transport.size());
  };
  if (!receives) adopt();
  if (!sends && !receives) return;
  const std::unique_ptr<Backend> host = open_backend(DeviceType::kCpu, 1);
  Exchange exchange{.kind = Exchange::Kind::kNeighbours};
  if (sends) exchange.send_to = ranks_of(handover.to);
  if (receives) exchange.receive_from = ranks_of({handover.from});
  if (receives) exchange.weights = {1.0};
  int count = 0;
  const auto move = [&](const Tensor& bytes) {
    transport.wait(transport.start_exchange(
        exchange, bytes, receives ? std::vector{bytes} : std::vector<Tensor>{},
        {.step = handover.step, .bucket = count++, .round = -1, .lane = Lane::kAside}));
  };
  OfferedState offered;
  if (sends) offered = bytes_of({std::shared_ptr<void>(), &*state});
  StateReader reader(handover.from * handover.replica + place,
                     backend.device() == DeviceType::kCpu ? backend : *host);
  const Tensor size(*host, Shape{sizeof offered.bytes}, DType::kUInt8);
  std::memcpy(size.raw(), &offered.bytes, sizeof offered.bytes);
  move(size);
  std::memcpy(&offered.bytes, size.raw(), sizeof offered.bytes);
  for (std::uint64_t at = 0; at < offered.bytes; at += kHandoverChunkBytes) {
    const std::size_t bytes = std::min<std::uint64_t>(kHandoverChunkBytes, offered.bytes - at);
    const Tensor piece(*host, Shape{static_cast<std::int64_t>(bytes)}, DType::kUInt8);
    if (sends) offered.read(at, reinterpret_cast<std::byte*>(piece.raw()), bytes);
    move(piece);
    if (receives) reader.add(offered.bytes, {reinterpret_cast<const char*>(piece.raw()), bytes});
  }
  if (!receives) return;
  state = reader.take();
  adopt();
}

}  // namespace starling
