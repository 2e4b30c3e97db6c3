#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/cuda/fake_ranks.h"
#include "tests/cuda/held_device.h"
#include "tests/cuda/run_config.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"

// Training steps of several ranks, threads with a fake GPU each, as a record that the race checker
// walks.
namespace starling::tests {

struct RaceRun {
  TrainingSettings settings;
  int ranks = 2;
  int steps = 4;
  /// The devices do nothing before somebody waits.
  bool held = false;
};

/// Records what the race checker needs; whatever is thrown, nothing is recorded afterwards.
struct RaceRecording {
  RaceRecording() { cuda::shim::start_recording(true); }
  ~RaceRecording() { cuda::shim::stop_recording(); }
  RaceRecording(const RaceRecording&) = delete;
  RaceRecording& operator=(const RaceRecording&) = delete;
};

/// Marked with "step N" and "end" on every rank.
inline std::vector<cuda::shim::Call> record_training(const RaceRun& run,
                                                     const TransportMaker& make) {
  const RaceRecording recording;
  std::optional<HeldDevice> held;
  if (run.held) held.emplace();
  run_ranks(run.ranks, make, [&](int, Backend& backend, Transport& transport) {
    TrainingJob job(backend, transport, run.settings);
    for (int step = 0; step < run.steps; ++step) {
      cuda::shim::note_mark("step " + std::to_string(step));
      job.step();
    }
    cuda::shim::note_mark("end");
    job.finish();
  });
  return cuda::shim::stop_recording();
}

/// A whole run with the trainer: a test, a checkpoint and micro-batches between steps, everything
/// that depends on the step within them.
inline nlohmann::json race_config(const std::string& algorithm, const std::string& precision,
                                  bool graphs) {
  return with(graph_config(9), {{"batch_size", 4},
                                {"accumulate", 2},
                                {"precision", precision},
                                {"cuda_graphs", graphs},
                                {"data", {{"limit", 128}}},
                                {"sync", {{"algorithm", algorithm}}},
                                {"clip_norm", 1.0},
                                {"clip", precision == "fp16" ? "global" : "bucket"},
                                {"evaluate", {{"every_steps", 6}}},
                                {"checkpoint", {{"every_steps", 7}}},
                                {"log_every", 2}});
}

/// A config with averages by the clock, of which one is always under way.
inline nlohmann::json asynchronous_config(const std::string& precision) {
  const nlohmann::json algorithm{{"type", "async"}, {"interval_ms", 0}, {"warmup", 2}};
  return with(race_config("allreduce", precision, false),
              {{"deterministic", false}, {"sync", {{"algorithm", algorithm}}}});
}

inline std::vector<cuda::shim::Call> record_run(int ranks, const nlohmann::json& config,
                                                const TransportMaker& make) {
  const RaceRecording recording;
  train_ranks(
      ranks, config, make,
      [](int, Backend&, const TrainConfig&, const std::function<void()>& train) { train(); });
  return cuda::shim::stop_recording();
}

inline std::size_t count(const std::vector<cuda::shim::Call>& calls, cuda::shim::CallKind kind) {
  return static_cast<std::size_t>(std::count_if(
      calls.begin(), calls.end(), [&](const cuda::shim::Call& call) { return call.kind == kind; }));
}

/// The record without the waits of streams for what the call at `place` recorded.
inline std::vector<cuda::shim::Call> without_waits_for(const std::vector<cuda::shim::Call>& calls,
                                                       std::size_t place) {
  std::vector<cuda::shim::Call> result;
  for (const cuda::shim::Call& call : calls) {
    const bool waits = call.kind == cuda::shim::CallKind::kWait &&
                       call.event == calls[place].event && call.recording == calls[place].recording;
    if (!waits) result.push_back(call);
  }
  return result;
}

/// How many races of two operations there are.
inline int races(const std::vector<cuda::shim::Call>& calls, const std::string& one,
                 const std::string& other) {
  const std::vector<cuda::shim::Finding> findings = cuda::shim::check_races(calls);
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(), [&](const cuda::shim::Finding& found) {
        return found.kind == cuda::shim::Finding::Kind::kRace &&
               ((found.one == one && found.other == other) ||
                (found.one == other && found.other == one));
      }));
}

/// How many races of two operations come when the streams do not wait for what the call at `place`
/// recorded. From there on nobody asks whether an event is done: the fake device, which is never
/// late, would answer yes, and the wait would not be missed.
inline int missed(const std::vector<cuda::shim::Call>& calls, std::size_t place,
                  const std::string& one, const std::string& other) {
  std::vector<cuda::shim::Call> silent(calls.begin(),
                                       calls.begin() + static_cast<std::ptrdiff_t>(place));
  for (std::size_t i = place; i < calls.size(); ++i) {
    if (calls[i].kind != cuda::shim::CallKind::kDone) silent.push_back(calls[i]);
  }
  return races(without_waits_for(silent, place), one, other) - races(silent, one, other);
}

/// Text of what was found, a line each: "" where nothing was.
inline std::string lines(const std::vector<cuda::shim::Finding>& findings) {
  std::string text;
  for (std::size_t i = 0; i < findings.size() && i < 8; ++i) text += findings[i].text + "\n";
  if (findings.size() > 8) text += "… " + std::to_string(findings.size()) + " in all\n";
  return text;
}

}  // namespace starling::tests
