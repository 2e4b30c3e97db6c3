#include "apps/training/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "apps/inference/model_source.h"
#include "apps/inference/version.h"
#include "apps/training/auto/auto_plan.h"
#include "apps/training/beginning.h"
#include "apps/training/check_gradients.h"
#include "apps/training/config/given_config.h"
#include "apps/training/config/graph_plan.h"
#include "apps/training/config/plugins.h"
#include "apps/training/device/device.h"
#include "apps/training/estimates/memory.h"
#include "apps/training/estimates/report.h"
#include "apps/training/evaluate_model.h"
#include "apps/training/joining.h"
#include "apps/training/lr_find.h"
#include "apps/training/output/version.h"
#include "apps/training/output_folder.h"
#include "apps/training/rejoining.h"
#include "apps/training/state/checkpoint.h"
#include "apps/training/state/data_contents.h"
#include "apps/training/state/elastic.h"
#include "apps/training/state/state_transfer.h"
#include "apps/training/timeline.h"
#include "apps/training/trainer.h"
#include "apps/training/training_run.h"
#include "apps/training/verify.h"
#include "apps/training/world_check.h"
#include "comm/agreement.h"
#include "comm/mpi/launcher.h"
#include "comm/replica.h"
#include "comm/shared/memory_sharing.h"
#include "comm/transports/staged.h"
#include "core/backend.h"
#include "core/console.h"
#include "core/crash.h"
#include "core/device_trace.h"
#include "core/flight_recorder.h"
#include "core/host.h"
#include "core/last_word.h"
#include "core/log.h"
#include "core/stop_signals.h"
#include "core/text.h"
#include "core/trace.h"

namespace starling {
namespace {

/// Limit on worlds of a job that fail in a row without taking a step.
constexpr int kMostAttempts = 8;

bool trains(const TrainOptions& options) { return options.evaluate.empty() && !options.dry_run; }
/// Asks the launcher, so that it can be called before MPI_Init.
bool is_first_rank() { return detail::read_launcher().rank <= 0; }

/// Opens the flight recorder; records of an earlier run move to "flight.before". Collective.
void open_flight_recorder(const OutputSettings& output, const RunFolder& folder, World& world) {
  FlightRecorder& recorder = FlightRecorder::instance();
  if (output.flight_recorder == "off") recorder.switch_off();
  const std::string path = folder.path + "/flight";
  if (world.rank() == 0) {
    std::error_code error;  // on failure the new records replace the old ones
    if (std::filesystem::exists(path, error)) {
      std::filesystem::remove_all(path + ".before", error);
      std::filesystem::rename(path, path + ".before", error);
    }
  }
  auto start = std::chrono::duration_cast<std::chrono::microseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count();
  if (world.size() > 1) world.broadcast(&start, sizeof start, 0);
  recorder.open(world.rank(), world.size(), host_name(), path, start);
  world.barrier();
}

/// State of a job that outlives one world, which is one set of ranks (`elastic.survive`,
/// `elastic.join`).
struct JobState {
  std::optional<MpiSession::Loss> last_loss;
  int initial_ranks = 0;  ///< of the first world; 0 before it
  std::string folder;     ///< the run's output folder; empty until it is known
  bool training = false;  ///< this world has made its trainer

  /// With `elastic.join`: who is in the job. Later worlds are made by it
  std::shared_ptr<Membership> membership;
  std::shared_ptr<Backend> backend;   ///< a CPU's, in whose memory the next world continues
  SafetensorsFile checkpoint_memory;  ///< TrainingRun::Joining's
  bool regroups = false;              ///< the next world, or this one, is made by it
  std::int64_t from_step = 0;         ///< that the last world continued from
  int last_ranks = 0;                 ///< of the last world
  int attempts = 0;                   ///< worlds that failed in a row without taking a step
  double timeout_seconds = 300.0;     ///< sync.timeout_s of the last world
  std::optional<SafetensorsFile> saved_state;  ///< this rank's state when the last world ended
  std::string lost;                            ///< why it ended, if a rank was lost
  bool lets_in = false;                        ///< this rank ended it, so that another may join
  int rank(const MpiSession& session) const {
    return membership ? membership->rank() : session.rank();
  }
  int size(const MpiSession& session) const {
    return membership ? membership->size() : session.size();
  }
};

/// Prepares the output folder on the first rank and broadcasts the result. Collective.
RunFolder agree_on_folder(const TrainOptions& options, TrainConfig& config, Transport& transport,
                          bool from_memory) {
  RunFolder folder;
  on_all_ranks(transport, [&] {
    check_outputs(config, transport.rank() == 0);
    if (transport.rank() != 0) return;
    // First, so that a faulty file does not leave a folder that the next attempt would refuse
    if (options.resume.empty()) check_start(config);
    folder = prepare_output_folder(options, from_memory);
  });
  if (transport.size() == 1) return folder;
  const std::string first_rank_has = transport.world()
                                         .all_gather(fmt::format("{} {} {}", folder.resume ? 1 : 0,
                                                                 folder.resume_step, folder.path))
                                         .front();
  const std::size_t space = first_rank_has.find(' ', 2);
  return {first_rank_has.substr(space + 1), first_rank_has[0] == '1',
          std::atoll(first_rank_has.substr(2, space - 2).c_str()), std::move(folder.lock)};
}

/// `chosen`: choose_by_measurement()'s text; `changed`: in the config since the checkpoint.
void print_header(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                  const Backend& backend, const RunFolder& folder, const JobState& job,
                  const std::string& chosen, const std::vector<std::string>& changed) {
  if (job.last_loss) {
    log::warning("{}; going on without a restart, on {} of {} ranks, from step {}",
                 job.last_loss->what, site.ranks, job.last_loss->ranks_before,
                 folder.resume ? folder.resume_step : 0);
  }
  const double quota = cpu_quota();
  say("starling {}: {} on {}, {}{}\n", version_text(), counted(site.ranks, "rank"),
      backend.description(), name_of(config.device.compute),
      std::isfinite(quota) ? fmt::format(", CPU quota: {:.3g} cores a host", quota) : "");
  say(chosen);
  say("{}: {}\n", config.resolved["model"].value("type", "model"),
      run_headline(config, site, trace));
  if (const std::string warning = memory_warning(config, site, trace); !warning.empty())
    log::warning("{}", warning);
  say(config.data.info.contents);
  say(period_text(config, site));
  if (config.data.cache) say("{}\n", config.data.cache->text());
  say("output: {}{}\n", folder.path,
      folder.resume ? fmt::format(", continuing after step {}", folder.resume_step) : "");
  for (const std::string& change : changed) say("changed since the checkpoint: {}\n", change);
  const auto& stretches = config.length.stretches;
  if (folder.resume && !stretches.empty() && stretches.back().step == folder.resume_step)
    say(text_of(stretches, run_length(config, site), config.length.accumulate, config.state.elastic,
                site.replica));
}

/// Trains and writes the run's files. `is_process`: not a thread; it leaves a flight record.
ExitCode train(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
               const ShapeTrace& planned, Backend& backend, Transport& transport, JobState& job,
               bool is_process) {
  std::optional<Handover> handover;
  if (job.regroups) {
    double most = job.initial_ranks;
    if (transport.size() > 1) transport.world().max(&most, 1);
    job.initial_ranks = static_cast<int>(most);
    if (job.saved_state) load_deferred_tensors(*job.saved_state);
    handover = plan_handover(job.saved_state ? &*job.saved_state : nullptr, config, transport);
  }
  RunFolder folder = agree_on_folder(options, config, transport, handover.has_value());
  if (!options.join.empty()) folder.path = options.join;  // it may lie elsewhere on another host
  job.folder = folder.path;
  const CheckpointFolder checkpoints(folder.path);
  if (handover) {
    folder.resume = true;
    folder.resume_step = handover->step;
    config.length.stretches = handover->stretches;
    hand_over(*handover, job.saved_state, backend, transport);
  } else if (folder.resume) {
    job.saved_state = read_newest_state(checkpoints, options.elastic, site, transport,
                                        folder.resume_step, config);
  } else if (job.initial_ranks > site.ranks) {
    // Ranks were lost before the first checkpoint: as --elastic would continue from step 0
    config.length.stretches =
        continued({{.ranks = job.initial_ranks / site.replica,
                    .batch_size = config.length.batch_size * site.replica}},
                  0, site.replicas().ranks, config.state.elastic, 0, site.replica);
  }
  const SafetensorsFile none;
  const SafetensorsFile& state =
      job.saved_state ? *job.saved_state : none;  // used until the trainer has loaded it
  if (folder.resume_step > job.from_step) job.attempts = 0;
  job.from_step = folder.resume_step;
  job.last_ranks = site.ranks;
  for (const char* key : {"starling.companions", "starling.tokenizer"}) {
    if (const auto entry = state.metadata.find(key); entry != state.metadata.end())
      config.companions.insert(*entry);
  }
  const bool other_ranks = is_mean_of_ranks(state);  // another number of them wrote the checkpoint
  const std::string source =
      handover ? fmt::format("the state of rank {}", handover->from * handover->replica)
               : checkpoints.rank_file(folder.resume_step, other_ranks ? 0 : transport.rank());
  const auto changes_since_checkpoint = [&] {
    if (handover) return std::vector<std::string>();  // the state comes from this very run
    if (!other_ranks) adopt_choice(config, site, saved_config(state, source), source);
    return check_resumable(state, source, config.resolved, config.written, transport.size(),
                           config.device.compute, other_ranks, &config.data.info);
  };
  if (const std::int64_t asked = run_length(config, site).total_steps;
      folder.resume && asked < folder.resume_step) {
    on_all_ranks(transport,
                 changes_since_checkpoint);  // the checkpoint must be of this config's run
    if (transport.rank() == 0)
      say("{} has done {}; {} were requested, so there is nothing to do\n", folder.path,
          counted(folder.resume_step, "step"), asked);
    job.saved_state.reset();
    return ExitCode::kOk;
  }
  if (is_process) open_flight_recorder(config.output, folder, transport);
  ShapeTrace trace = planned;
  if (!config.length.stretches.empty() &&
      config.length.stretches.back().batch_size != config.length.batch_size * site.replica) {
    const std::int64_t joint = config.length.stretches.back().batch_size;
    if (joint % site.replica != 0)
      fail_on_all_ranks(ExitCode::kUsage, "config", {.file = config.source, .key = "sync.replica"},
                        "is {}, which does not divide the {} samples of a replica's batch that "
                        "the run goes on with; give a batch_size, or another replica",
                        site.replica, joint);
    config.length.batch_size = joint / site.replica;
    trace = trace_shapes(config);
  }
  const std::string chosen = folder.resume && !other_ranks
                                 ? ""
                                 : choose_by_measurement(config, site, trace, backend, transport);
  std::vector<std::string> changed;
  // A joiner on another host may have a folder of its own: publish the job there too, so that
  // others of that host can join.
  const bool publishes =
      job.membership &&
      (transport.rank() == 0 || (!options.join.empty() && transport.world().local_rank() == 0));
  const bool tracing = !config.output.trace.empty();
  on_all_ranks(transport, [&] {
    if (folder.resume || !config.length.stretches.empty())
      check_data_size(config, source_of(options), site);
    if (folder.resume) changed = changes_since_checkpoint();
    if (publishes) publish_job(folder.path, config, *job.membership);
    if (transport.rank() != 0) return;
    nlohmann::json resolved = config.resolved;
    if (tracing)  // independent of the working directory
      resolved["trace"] = absolute_path(config.output.trace);
    const std::string text = resolved.dump(2) + "\n";
    write_file_atomically(folder.path + "/config.json", text.data(), text.size());
    // A resumed run continues past the end that its summary is about.
    std::error_code ignored;
    if (folder.resume) std::filesystem::remove(folder.path + "/summary.json", ignored);
  });
  if (transport.rank() == 0)
    print_header(config, site, trace, backend, folder, job, chosen, changed);

  Tracer tracer(transport.rank());
  double any_rank_traces = tracing ? 1.0 : 0.0;  // it may differ between hosts
  if (transport.size() > 1) transport.world().max(&any_rank_traces, 1);
  transport.world().barrier();
  // Just after a barrier, so that timelines of all ranks share their origin
  const auto origin = Tracer::Clock::now();
  std::optional<DeviceTrace> device_trace;
  if (tracing) {
    Tracer::install(&tracer);
    device_trace.emplace(tracer, backend);
  }
  job.training = true;
  at_stop_signal(AtStopSignal::kNote);
  Trainer trainer(config, site, trace, backend, transport,
                  job.saved_state ? &*job.saved_state : nullptr);
  TrainingRun run(trainer, folder.path,
                  {job.membership.get(),
                   [&](std::int64_t step) { return why_cannot_grow(options, config, site, step); },
                   &job.checkpoint_memory});
  if (folder.resume) {
    trainer.resume(state, source, handover && handover->after_loss);
    run.resume(state, source, handover && handover->after_loss);
  } else {
    trainer.initialise();
  }
  transport.world().barrier();
  if (handover && trainer.algorithm().equality.any()) verify_replicas(trainer);
  job.saved_state.reset();
  if (job.membership) come_back_to(folder.path);
  ExitCode result;
  try {
    result = run.run();
  } catch (const AgreedError&) {
    throw;  // every rank throws it, so all end
  } catch (const Error& error) {
    if (error.code() == ExitCode::kLost && job.membership && !job.membership->over()) {
      job.saved_state = run.handover_state(true);
      job.lets_in = run.joins();
    }
    throw;
  }
  if (run.joins()) job.saved_state = run.handover_state(false);

  if (tracing) {
    device_trace->finish();
    Tracer::install(nullptr);
  }
  if (is_process && config.output.flight_recorder == "end")
    FlightRecorder::instance().write(FlightRecorder::Reason::kEnd, static_cast<int>(result),
                                     "the end of the run");
  if (any_rank_traces > 0.0)
    write_timeline(config.output.trace, tracing ? tracer.events(origin) : std::string(),
                   folder.path, transport);
  if (job.saved_state) return result;
  if (publishes) withdraw_job(folder.path);
  if (transport.rank() == 0) {
    if (result == ExitCode::kStopped)
      say("stopped by a signal after a checkpoint; continue with --output {} --resume latest\n",
          folder.path);
    else
      say("done: model {0}/model.safetensors, metrics {0}/metrics.jsonl, summary "
          "{0}/summary.json\n",
          folder.path);
  }
  return result;
}

/// Builds the configured transport on top of the one for plain messages. Collective.
std::unique_ptr<Transport> choose_transport(const TrainConfig& config,
                                            const std::vector<Parameter*>& parameters,
                                            std::unique_ptr<Transport> messages, Backend& backend,
                                            JobState& job) {
  const bool cpu = backend.device() == DeviceType::kCpu;
  on_all_ranks(*messages, [&] {
    if (cpu && !config.sync.transport.between_cpus) {
      fail(ExitCode::kUsage, "config",
           "sync.transport is {}, which connects GPUs only; on CPUs: {}",
           config.sync.transport.name, transports_between_cpus());
    }
    if (!cpu && !config.sync.transport.between_gpus) {
      fail(ExitCode::kUsage, "config",
           "sync.transport is {}, which connects CPUs only; on GPUs: auto",
           config.sync.transport.name);
    }
  });
  const bool joins = config.state.elastic.join;
  if (messages->size() == 1 && !joins) return messages;
  if (job.regroups) return cpu ? std::move(messages) : make_staged_transport(std::move(messages));
  const int local_ranks = messages->world().local_size();
  const bool own_cores = cores_of_rank(local_ranks) >= compute_threads(config.device, local_ranks);
  std::unique_ptr<Transport> made = config.sync.transport.make(
      std::move(messages),
      {.backend = backend,
       .timeout_seconds = config.sync.timeout_s,
       .max_ctas = config.sync.max_ctas,
       .own_cores = own_cores,
       .identity = identity_of(config.resolved, contents_of(config.data.info), parameters),
       .membership = joins ? &job.membership : nullptr,
       .replica = config.sync.replica,
       .heartbeat_seconds = config.sync.heartbeat_s});
  if (!made)
    fail(ExitCode::kUsage, "transport", "the plan of {} makes null; `make` must give a Transport",
         transports().whose(config.sync.transport.name));
  return made;
}

/// `elastic.survive`: from here on a lost rank does not end the job, or a warning says why not.
void enable_survival(const TrainConfig& config, const Backend& backend, World& world,
                     MpiSession& session) {
  std::string why_not;
  if (backend.device() != DeviceType::kCpu)
    why_not = "it is supported on CPUs only";
  else
    why_not = session.why_not_survive();
  if (why_not.empty()) {
    session.survive_losses(config.sync.timeout_s, config.sync.replica);
  } else if (session.rank() == 0 && world.size() > 1) {
    log::warning("elastic.survive is true, but a lost rank will end this run: {}", why_not);
  }
}

/// Does what the options ask for with one set of ranks. `session`: null where ranks are threads.
ExitCode run_world(TrainOptions options, const MakeTransport& make_transport, MpiSession* session,
                   JobState& job) {
  if (session && trains(options)) {
    const char* message =
        is_first_rank() ? "stopped by a signal before the first step: there is nothing to save\n"
                        : nullptr;
    at_stop_signal(AtStopSignal::kEndAsStopped, message);
  }
  // Destroyed in reverse: tensors, the transport with its threads, the backend with the memory.
  std::shared_ptr<Backend> backend;
  std::unique_ptr<Transport> transport = make_transport(300.0);
  agree_on_build(*transport, version_report());
  if (session && session->rank() == 0) {
    for (const std::string& warning : session->warnings()) log::warning("{}", warning);
  }
  RankLayout site{transport->size(), transport->world().local_size()};
  if (job.initial_ranks == 0) job.initial_ranks = site.ranks;
  TrainConfig config;
  ShapeTrace trace;
  on_all_ranks(*transport, [&] {
    if (options.evaluate.empty() || transport->rank() != 0) return;
    const auto [path, note] = find_model(options.evaluate);
    options.evaluate = path;
    if (!note.empty()) log::info("{}", note);
  });
  // The first rank's choice: a run in progress may write another checkpoint before others look.
  if (transport->size() > 1 && !options.evaluate.empty())
    options.evaluate = transport->world().all_gather(options.evaluate).front();
  on_all_ranks(*transport, [&] {
    config = read_for_ranks(options, site, transport->rank() == 0);
    site.replica = config.sync.replica;
    if (const std::string& note = config.state.init.told;
        transport->rank() == 0 && options.resume.empty() && !note.empty())
      log::info("init: {}", note);
    trace = trace_shapes(config);
  });
  agree_on_config(*transport, config.resolved);
  if (site.replica > 1)
    check_replica_hosts(*transport, site.replica,
                        make_process_sharing(config.sync.timeout_s)->host());
  if (options.dry_run) {
    on_all_ranks(*transport, [&] {
      if (config.data.dataset->countable()) open_data(options, config, site);
    });
    check_beginning(options, config, site, transport->world());
    if (transport->rank() == 0)
      answer("{}", options.json ? dry_run_json(config, site, trace, options.network)
                                : dry_run_report(config, site, trace, options.network));
    return ExitCode::kOk;
  }
  if (session) session->expect_heartbeats(config.sync.heartbeat_s);
  if (config.sync.timeout_s != 300.0 && !job.regroups) {
    transport.reset();
    transport = make_transport(config.sync.timeout_s);
  }
  on_all_ranks(*transport, [&] { open_data(options, config, site); });
  agree_on_data(*transport, contents_of(config.data.info), data_path_of(config.resolved));
  backend =
      choose_backend(config.device, *config.optimizer.rule, *config.model, *transport, job.backend);
  if (options.check_gradients) {
    on_all_ranks(*transport, [&] { check_gradients(config, *backend, transport->rank() == 0); });
    return ExitCode::kOk;
  }
  if (session && config.state.elastic.survive && options.evaluate.empty())
    enable_survival(config, *backend, *transport, *session);
  transport = choose_transport(config, trace.ready_order, std::move(transport), *backend, job);
  job.timeout_seconds = config.sync.timeout_s;
  if (job.membership && backend->device() == DeviceType::kCpu) job.backend = backend;
  if (job.membership && session) session->leave();
  if (job.membership) job.membership->set_identity(identity_of_joiners(config, trace.ready_order));
  if (choose_precision(config.device, *backend, *transport)) trace = trace_shapes(config);
  if (!options.evaluate.empty()) return evaluate_model(options, config, *backend, *transport);
  if (config.data.cache)
    config.data.cache->allocate(transport->world(), *make_process_sharing(config.sync.timeout_s));
  if (!options.lr_find.empty()) {
    at_stop_signal(AtStopSignal::kNote);
    return find_lr(options, config, site, *backend, *transport);
  }
  if (config.device.cuda_graphs == GraphChoice::kOn)  // refused before there is a folder
    (void)agree_on_graphs(plan_graphs(config, site), *backend, *transport);
  return train(options, config, site, trace, *backend, *transport, job, session != nullptr);
}

/// "rank 2": those of a roster (Membership::roster()) that are not in a later one.
std::string missing_ranks(const std::string& before, const std::string& after) {
  const auto members = nlohmann::json::parse(before)["members"],
             now = nlohmann::json::parse(after)["members"];
  std::vector<std::string> missing;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (std::ranges::count(now, members[rank]) == 0)
      missing.push_back(fmt::format("rank {}", rank));
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

/// The next world of a job that ranks join or have been lost in.
std::unique_ptr<Transport> regroup(JobState& job) {
  const std::string before = job.membership->roster();
  std::unique_ptr<Transport> transport = job.membership->regroup(job.timeout_seconds);
  log::configure(transport->rank(), transport->size());
  job.last_loss.reset();
  if (job.lost.empty() && transport->size() <= job.last_ranks)
    job.lost = missing_ranks(before, job.membership->roster()) + " was lost as another joined";
  if (!job.lost.empty())
    job.last_loss = {.what = std::exchange(job.lost, {}), .ranks_before = job.last_ranks};
  return transport;
}

/// Runs, and again after the loss of ranks with the remaining ones, if config and MPI allow it.
ExitCode run_until_done(TrainOptions options, MpiSession& session, JobState& job) {
  if (!options.join.empty()) {
    if (session.size() > 1)
      fail_on_all_ranks(ExitCode::kUsage, "join", {},
                        "--join is for one process, and mpirun has started {}; start each without "
                        "mpirun",
                        session.size());
    job.membership = ask_to_join(options, job.timeout_seconds, job.backend, job.saved_state);
    job.regroups = true;
  }
  const auto make_transport = [&](double timeout_seconds) {
    return job.regroups ? regroup(job) : session.make_transport(timeout_seconds);
  };
  while (true) {
    job.training = false;
    log::configure(job.rank(session), job.size(session));
    try {
      const ExitCode result = run_world(options, make_transport, &session, job);
      if (!job.saved_state) return result;
      job.regroups = true;
    } catch (const AgreedError& error) {
      if (!job.last_loss || job.training || error.code() != ExitCode::kUsage) throw;
      // The config does not work with the remaining number of ranks.
      fail_on_all_ranks(
          ExitCode::kLost, "survive", {},
          "{}, and the run cannot continue with {} of {} ranks: {}; continue with --resume latest",
          job.last_loss->what, session.size(), job.last_loss->ranks_before, error.message());
    } catch (const Error& error) {
      if (error.code() != ExitCode::kLost) throw;
      if (job.membership && !job.membership->over()) {
        // If the cause is not a lost rank it will recur: give up after kMostAttempts.
        if (++job.attempts > kMostAttempts) throw;
        if (!std::exchange(job.lets_in, false)) job.lost = error.message();
        job.regroups = true;
      } else {
        if (job.membership || !session.surviving()) throw;
        job.last_loss = session.go_on_without_lost();
        if (!job.last_loss) throw;
      }
    }
    options.elastic = true;
    if (job.folder.empty()) continue;
    options.output = job.folder;
    options.resume = "latest";
  }
}

void print_failure(const std::string& message, int rank) {
  std::fflush(stdout);
  complain(rank > 0 ? fmt::format("rank {}: {}", rank, message) : message);
}

/// Returns the exit status. `reports`: in: whether this rank prints errors; out: whether it has
/// printed one.
int run_program(int argc, char** argv, bool& reports) {
  take_standard_files(false);
  register_builtins();
  TrainOptions options;
  try {
    options = parse_train_options(argc, argv);
    if (trains(options)) train_in_child(options);
    install_stop_signals();
    at_stop_signal(AtStopSignal::kEnd);
    check_stack_limit();
    if (answer_question(options, is_first_rank())) return 0;
    // Until run_world(). A joiner may wait for long before that, and must stay interruptible.
    if (trains(options) && options.join.empty()) at_stop_signal(AtStopSignal::kNote);
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    if (reports) print_failure(failure.what(), 0);
    return static_cast<int>(failure.code());
  }
  // Beyond the limit on file sizes, fail in write() with a message, not by this signal.
  std::signal(SIGXFSZ, SIG_IGN);
  MpiSession session;
  FlightRecorder& recorder = FlightRecorder::instance();
  recorder.set_rank(session.rank());
  install_crash_reports();
  JobState job;
  try {
    return static_cast<int>(run_until_done(std::move(options), session, job));
  } catch (const AgreedError& error) {
    come_back_to({});
    // All ranks have this error: the lowest one that it happened on prints it.
    const int reporter = std::max(error.rank(), 0);
    const bool own = error.rank() < 0 || error.rank() == job.rank(session);
    recorder.write(own ? FlightRecorder::Reason::kError : FlightRecorder::Reason::kOther,
                   static_cast<int>(error.code()), error.what());
    reports = job.rank(session) == reporter;
    if (reports) print_failure(error.what(), job.size(session) > 1 ? error.rank() : 0);
    if (error.code() != ExitCode::kDiverged || session.size() == 1)
      return static_cast<int>(error.code());
    // Exchanges in flight will never complete: abort, once the reporter has had time to print.
    if (session.rank() != reporter) std::this_thread::sleep_for(std::chrono::seconds(5));
    session.abort(error.code(), {});
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    if (session.size() > 1)
      session.abort(failure.code(), fmt::format("rank {}: {}", session.rank(), failure.what()));
    recorder.write(FlightRecorder::Reason::kError, static_cast<int>(failure.code()),
                   failure.what());
    print_failure(failure.what(), job.rank(session));
    return static_cast<int>(failure.code());
  }
}

}  // namespace

ExitCode run_ranks(const TrainOptions& options, const MakeTransport& make_transport) {
  JobState job;
  return run_world(options, make_transport, nullptr, job);
}

int run_under_mpirun(const char* name, const std::function<int(MpiSession&)>& work) {
  MpiSession session;
  try {
    return work(session);
  } catch (const AgreedError& error) {
    if (session.rank() == std::max(error.rank(), 0)) complain("{}: {}", name, error.what());
    return static_cast<int>(error.code());
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    if (session.size() > 1)
      session.abort(failure.code(), fmt::format("{}: {}", name, failure.what()));
    complain("{}: {}", name, failure.what());
    return static_cast<int>(failure.code());
  }
}

int train_main(int argc, char** argv) {
  bool reports = is_first_rank();
  const int status = run_program(argc, argv, reports);
  return last_word(status, reports);
}

}  // namespace starling
