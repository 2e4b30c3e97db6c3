#include "comm/capture.h"

#include <cstddef>
#include <utility>

#include "comm/mixer.h"
#include "comm/transport.h"

namespace starling {

std::unique_ptr<Capture> Capture::begin(Backend& backend, Transport& transport, Mixer* mixer,
                                        std::vector<Bucket>& buckets, const StepValues& values) {
  if (!backend.begin_capture(values)) return nullptr;
  std::unique_ptr<Capture> capture(new Capture(backend, buckets));
  for (const Bucket& bucket : buckets) capture->before_.push_back(bucket.parameters.raw());
  capture->parts_.push_back(transport.join_capture(values.pass));
  if (mixer) capture->parts_.push_back(mixer->join_capture(values.pass));
  std::erase(capture->parts_, nullptr);
  // All streams join the capture.
  const Event begun = backend.record();
  for (const StreamKind stream : {StreamKind::kUpdate, StreamKind::kCommunication}) {
    const StreamScope scope(backend, stream);
    backend.wait(begun);
  }
  return capture;
}

Capture::~Capture() {
  if (launched_) return;
  if (!graph_) backend_.abandon_capture();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (flipped(b)) buckets_[b].flip();
  }
}

void Capture::end() {
  for (const StreamKind stream : {StreamKind::kUpdate, StreamKind::kCommunication}) {
    Event through;
    {
      const StreamScope scope(backend_, stream);
      through = backend_.record();
    }
    backend_.wait(through);
  }
  graph_ = backend_.end_capture();
  for (std::size_t b = 0; b < buckets_.size(); ++b) flips_.push_back(flipped(b) ? 1 : 0);
}

void Capture::launch(const StepValues& values) {
  graph_->launch(values);
  // At the first launch the capture itself has changed the buffers
  if (std::exchange(launched_, true)) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (flips_[b]) buckets_[b].flip();
    }
  }
  for (const auto& part : parts_) part->launched(values.pass);
}

}  // namespace starling
