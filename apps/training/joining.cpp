#include "apps/training/joining.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "apps/data/collate.h"
#include "apps/inference/description.h"
#include "apps/training/beginning.h"
#include "apps/training/config/given_config.h"
#include "apps/training/device/device.h"
#include "apps/training/output/output_file.h"
#include "apps/training/output_folder.h"
#include "apps/training/state/data_contents.h"
#include "apps/training/state/elastic.h"
#include "apps/training/state/state_transfer.h"
#include "apps/training/state/training_state.h"
#include "apps/training/trainer.h"
#include "apps/training/training_run.h"
#include "apps/training/world_check.h"
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
constexpr std::size_t kMostJobBytes = 64u << 20, kHandoverChunkBytes = 16u << 20;
/// Marks a joiner's state that it fetched before it was admitted.
constexpr const char* kPrefetched = "handed_over_ahead";
constexpr auto kSecondsToRegroup = std::chrono::seconds(10),
               kPollInterval = std::chrono::seconds(1);

/// Whether a tensor is meaningless for another number of ranks.
bool depends_on_rank_count(const std::string& name) {
  return name.starts_with("sync.residual_mean");
}

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

std::shared_ptr<Membership> ask_to_join(TrainOptions& options, double& timeout_seconds,
                                        std::shared_ptr<Backend>& host,
                                        std::optional<SafetensorsFile>& state) {
  const std::string run = options.join;
  options.config = job_file(run);
  options.output = run;
  options.resume = "latest";
  options.elastic = true;
  const FileText job = read_file(options.config, kMostJobBytes);
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
      .heartbeat_seconds = config.sync.heartbeat_s,
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
        const FileText file = read_file(options.config, kMostJobBytes);
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
    if (handover.other_ranks) clear_tensors(*state, depends_on_rank_count);
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
  if (sends) offered = state_bytes({std::shared_ptr<void>(), &*state});
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
