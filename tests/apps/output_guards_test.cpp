#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "apps/training/output/output_file.h"
#include "apps/training/state/checkpoint.h"
#include "core/host.h"
#include "tests/apps/data_test_support.h"
#include "tests/fakes/transport/fake_transport.h"

using namespace starling;
using namespace starling::test;
namespace fs = std::filesystem;

namespace {

SafetensorsFile state_of(int rank) {
  SafetensorsFile file;
  file.tensors["model.weight"] = {DType::kUInt8, Shape{1}, {static_cast<std::byte>(rank)}};
  return file;
}

}  // namespace

TEST_CASE(
    "apps/checkpoint writer: ranks write beside their steps, one checkpoint after the other, each "
    "complete before the next") {
  const Folder folder;
  std::vector<std::int64_t> done;  // as rank 0 hears it
  FakeWorld(3).run([&](Transport& transport) {
    CheckpointWriter writer(transport.world(), CheckpointFolder(folder.path()), 2,
                            [&](std::int64_t step) {
                              if (transport.rank() == 0) done.push_back(step);
                            });
    CHECK_FALSE(writer.pending());
    for (const std::int64_t step : {5, 6, 7}) {
      writer.start(step, state_of(transport.rank()));
      CHECK(writer.pending());
    }
    const std::int64_t part = writer.part_number();
    for (int ended = 0; ended < 2; ++ended) {
      writer.advance();  // the checksums of step 7, its files
      CHECK(writer.part_number() > part);
      CHECK(writer.pending());
    }
    writer.advance();
    CHECK_FALSE(writer.pending());
    writer.finish();
  });
  CHECK(done == std::vector<std::int64_t>{5, 6, 7});
  const CheckpointFolder checkpoints(folder.path());
  CHECK(checkpoints.newest() == 7);
  CHECK(checkpoints.newest(7) == 6);
  CHECK_FALSE(checkpoints.newest(6));
  CHECK(checkpoints.ranks(7) == 3);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(checkpoints.read(7, rank).tensors.at("model.weight").bytes[0] ==
          static_cast<std::byte>(rank));
  }
}

TEST_CASE(
    "apps/checkpoint writer: each tensor is in the file of the lowest rank that has it alike") {
  const Folder folder;
  FakeWorld(4).run([&](Transport& transport) {
    const auto byte = [](int value) {
      return FileTensor{DType::kUInt8, Shape{1}, {static_cast<std::byte>(value)}};
    };
    SafetensorsFile state;
    state.tensors["all"] = byte(9);
    state.tensors["own"] = byte(transport.rank());
    state.tensors["pairs"] = byte(transport.rank() / 2);
    state.metadata["step"] = std::to_string(transport.rank());
    CheckpointWriter writer(transport.world(), CheckpointFolder(folder.path()), 1,
                            [](std::int64_t) {});
    writer.start(3, std::move(state));
    writer.finish();
  });
  const CheckpointFile checkpoint(CheckpointFolder(folder.path()).step_folder(3));
  CHECK(checkpoint.step() == 3);
  const std::vector<std::string> written = {"all own pairs ", "own ", "own pairs ", "own "};
  for (int rank = 0; rank < checkpoint.ranks(); ++rank) {
    CAPTURE(rank);
    std::string names;
    for (const auto& [name, tensor] : read_safetensors(checkpoint.rank_file(rank)).tensors)
      names += name + " ";
    CHECK(names == written[static_cast<std::size_t>(rank)]);
    const SafetensorsFile state = checkpoint.read(rank);
    CHECK(state.tensors.at("all").bytes[0] == std::byte{9});
    CHECK(state.tensors.at("own").bytes[0] == static_cast<std::byte>(rank));
    CHECK(state.tensors.at("pairs").bytes[0] == static_cast<std::byte>(rank / 2));
    CHECK(state.metadata == std::map<std::string, std::string>{{"step", std::to_string(rank)}});
    const auto pairs = [](const std::string& name) { return name != "pairs"; };
    CHECK(checkpoint.read(rank, pairs).tensors.size() == 1);
  }
}

TEST_CASE(
    "apps/checkpoint writer: what a rank cannot write ends all ranks with its reason, whatever "
    "rank that is") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  FakeWorld(2).run([&](Transport& transport) {
    CheckpointWriter writer(transport.world(), checkpoints, 2, [](std::int64_t) {});
    writer.start(1, state_of(transport.rank()));
    writer.finish();
    // Somebody removes the folder that rank 0 has made. A rank that was faster has its file, the
    // others have none.
    const std::string reason = error_of(ExitCode::kOutput, [&] {
      for (std::int64_t step = 2; step < 50; ++step) {
        writer.start(step, state_of(transport.rank()));
        std::error_code ignored;
        fs::remove_all(checkpoints.step_folder(step), ignored);
        writer.finish();
      }
    });
    CHECK(contains(reason, "step-"));
    CHECK_FALSE(writer.pending());
  });
}

TEST_CASE(
    "apps/checkpoint writer: a rank that ends in the middle waits for its thread, and leaves "
    "nothing complete") {
  const Folder folder;
  const auto alone = make_single_transport();
  {
    CheckpointWriter writer(alone->world(), CheckpointFolder(folder.path()), 2,
                            [](std::int64_t) {});
    writer.start(4, state_of(0));
  }
  CHECK_FALSE(CheckpointFolder(folder.path()).newest());
}

TEST_CASE("apps/folder lock: one at a time, named, and free again after it") {
  const Folder folder;
  {
    const auto lock = FolderLock::take(folder.path());
    REQUIRE(lock);
    const std::string text = error_of(ExitCode::kUsage, [&] { FolderLock::take(folder.path()); });
    CHECK(contains(text, folder.path()));
    CHECK(contains(text, "process " + std::to_string(::getpid()) + " on host " + host_name()));
  }
  CHECK(fs::is_empty(folder.path()));
  write_bytes(folder / FolderLock::kName, {'o', 'l', 'd'});  // of a run that was killed
  CHECK(FolderLock::take(folder.path()));
  CHECK(fs::is_empty(folder.path()));
  CHECK_FALSE(FolderLock::take(folder / "none"));
}
