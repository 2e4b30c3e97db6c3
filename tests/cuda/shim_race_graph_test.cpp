#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/operations/map.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/fakes/cuda/noting_backend.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"

// The race checker on graphs and what is issued around them: the batch that goes up, the loss that
// comes back, an evaluation between two launches.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_races;
using cuda::shim::Finding;
using Kind = cuda::shim::Finding::Kind;

enum class Wrong {
  kNothing,
  kFork,    ///< the side stream does not wait for the work that it goes on with
  kUpload,  ///< a batch goes up before the graph has read the one before
  kBatch,   ///< a graph does not wait for its batch
  /// The next graph writes the loss before the copy of the last one's, on another stream, has read
  /// it
  kLoss,
  /// Nobody holds the loss, whose memory the next graph uses for something else, and it is read all
  /// the same
  kLossFreed,
  kBatchFreed,  ///< the memory of a batch is given back before a launch that reads it
  kEvaluation,  ///< an evaluation on another stream changes what graphs read
};

/// Two graphs in turn, as of two rounds, of two streams each: y = 2x on one and the loss = 4x + y
/// on the other.
std::vector<Finding> findings_of(Wrong wrong) {
  cuda::shim::start_recording(true);
  {
    cuda::CudaBackend cuda(0, false, false, true);
    cuda::shim::NotingBackend backend(cuda);
    Tensor batch(backend, Shape{64}, DType::kFloat32);
    const Tensor y(backend, batch.shape(), batch.dtype()),
        other(backend, batch.shape(), batch.dtype());
    Tensor loss(backend, batch.shape(), batch.dtype());
    const std::vector<float> numbers(64, 1.0f);
    std::vector<float> host(64);
    const auto on = [&](StreamKind stream, const auto& work) {
      const StreamScope scope(backend, stream);
      work();
      return backend.record();
    };
    const auto upload = [&](Event after) {
      return on(StreamKind::kUpload, [&] {
        if (wrong != Wrong::kUpload) backend.wait(after);
        backend.copy_from_host(numbers.data(), batch);
      });
    };
    backend.wait(upload(backend.record()));
    std::array<std::unique_ptr<DeviceGraph>, 2> graphs;
    const void* stale = nullptr;
    for (auto& graph : graphs) {
      REQUIRE(backend.begin_capture({}));
      if (wrong == Wrong::kLossFreed) loss = Tensor(backend, batch.shape(), batch.dtype());
      const Tensor sum(backend, batch.shape(), batch.dtype());
      Event fork = backend.record();
      backend.map({MapFunction::kAdd, batch, batch, sum});
      if (wrong != Wrong::kFork) fork = backend.record();
      const Event doubled = on(StreamKind::kUpdate, [&] {
        backend.wait(fork);
        backend.map({MapFunction::kAdd, sum, sum, y});
      });
      backend.wait(doubled);
      backend.map({MapFunction::kAdd, batch, sum, loss});
      if (wrong == Wrong::kLossFreed) {
        if (!stale) stale = loss.raw();
        loss = {};
      }
      graph = backend.end_capture();
    }
    Event copied;
    // A launch comes by itself after what the update and the communication stream were told.
    const StreamKind reader =
        wrong == Wrong::kLoss ? StreamKind::kUpload : StreamKind::kCommunication;
    for (int step = 0; step < 4; ++step) {
      if (wrong != Wrong::kLoss) backend.wait(copied);
      graphs[static_cast<std::size_t>(step) % 2]->launch({});
      const Event done = backend.record();
      const Event arrived = upload(done);
      copied = on(reader, [&] {
        backend.wait(done);
        if (loss) {
          backend.map({MapFunction::kAdd, loss, loss, other});
        } else {  // as a view would that holds no memory
          cuda::shim::note({.kind = CallKind::kRead,
                            .stream = cuda.handle(),
                            .label = "add",
                            .from = stale,
                            .bytes = batch.bytes()});
        }
      });
      if (step == 1) {
        const auto evaluate = [&] { backend.map({MapFunction::kAdd, y, y, batch}); };
        if (wrong == Wrong::kEvaluation) {
          on(StreamKind::kUpdate, evaluate);
        } else {
          backend.wait(arrived);
          evaluate();
        }
      }
      if (wrong != Wrong::kBatch) backend.wait(arrived);
    }
    if (wrong == Wrong::kBatchFreed) {
      batch = {};
      graphs[0]->launch({});
    }
    backend.synchronize();
  }
  return check_races(cuda::shim::stop_recording());
}

std::set<Kind> kinds(const std::vector<Finding>& findings) {
  std::set<Kind> all;
  for (const Finding& finding : findings) all.insert(finding.kind);
  return all;
}

}  // namespace

TEST_CASE("cuda/race: graphs and what is issued around them") {
  for (const Finding& finding : findings_of(Wrong::kNothing)) FAIL_CHECK(finding.text);
  CHECK(kinds(findings_of(Wrong::kFork)) == std::set<Kind>{Kind::kRace});
  CHECK(kinds(findings_of(Wrong::kUpload)) == std::set<Kind>{Kind::kRace});
  CHECK(kinds(findings_of(Wrong::kBatch)) == std::set<Kind>{Kind::kRace});
  CHECK(kinds(findings_of(Wrong::kLoss)) == std::set<Kind>{Kind::kRace});
  CHECK(kinds(findings_of(Wrong::kEvaluation)) == std::set<Kind>{Kind::kRace});
  CHECK(kinds(findings_of(Wrong::kLossFreed)) == std::set<Kind>{Kind::kFreedMemory});
  CHECK(kinds(findings_of(Wrong::kBatchFreed)) == std::set<Kind>{Kind::kFreedMemory});
  const std::vector<Finding> upload = findings_of(Wrong::kUpload);
  CHECK(std::any_of(upload.begin(), upload.end(), [](const Finding& f) {
    return f.one == "map" && f.other == "copy to the device";
  }));
}

}  // namespace starling::tests
