#include "apps/training/state/checkpoint_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "comm/agreement.h"

namespace starling {
namespace {

constexpr int kNiceness = 5;

}  // namespace

CheckpointWriter::CheckpointWriter(World& world, CheckpointFolder folder, int keep,
                                   std::function<void(std::int64_t)> done)
    : world_(world), folder_(std::move(folder)), keep_(keep), done_(std::move(done)) {}

CheckpointWriter::~CheckpointWriter() {
  if (work_.valid()) work_.wait();
}

void CheckpointWriter::run(const std::function<void()>& work) {
  try {
    work_ = std::async(std::launch::async, [work] {
      // Training computes on all cores: a thread of this niceness takes a quarter of one, or what
      // is idle. Linux keeps it per thread.
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
      work();
    });
  } catch (const std::system_error&) {  // no thread to be had: then the step waits
    std::promise<void> result;
    work_ = result.get_future();
    try {
      work();
      result.set_value();
    } catch (...) {
      result.set_exception(std::current_exception());
    }
  }
}

void CheckpointWriter::start(std::int64_t step, SafetensorsFile state) {
  finish();
  on_all_ranks(world_, [&] {
    if (world_.rank() == 0) folder_.begin(step);
  });
  step_ = step;
  state_ = std::move(state);
  ++number_;
  if (world_.size() == 1) return write_file();
  part_ = Part::kSums;
  run([this] { sums_ = checksums_of(state_); });
}

void CheckpointWriter::write_file() {
  part_ = Part::kFiles;
  run([this] { digest_ = folder_.write(step_, world_.rank(), state_); });
}

bool CheckpointWriter::busy() const {
  return work_.valid() && work_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::advance() {
  const Part ended = std::exchange(part_, Part::kNone);
  ++number_;
  on_all_ranks(world_, [&] {
    if (work_.valid()) work_.get();
  });
  if (ended == Part::kSums) {
    share_tensors(world_, sums_, state_);
    return write_file();
  }
  if (ended == Part::kCompletion) {
    done_(step_);
    return;
  }
  if (ended != Part::kFiles) return;
  digests_ = all_digests(world_, digest_);
  part_ = Part::kCompletion;
  if (world_.rank() == 0) run([this] { folder_.complete(step_, keep_, digests_); });
}

SafetensorsFile CheckpointWriter::take_used() {
  return part_ == Part::kSums || part_ == Part::kFiles ? SafetensorsFile()
                                                       : std::exchange(state_, {});
}

void CheckpointWriter::finish() {
  while (pending()) advance();
}

}  // namespace starling
