#include <doctest/doctest.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "apps/training/output/output_file.h"
#include "apps/training/state/checkpoint.h"
#include "core/checksum.h"
#include "core/host.h"
#include "tests/apps/data_test_support.h"
#include "tests/fakes/transport/fake_transport.h"

using namespace starling;
using namespace starling::test;
namespace fs = std::filesystem;

namespace {

SafetensorsFile file_of(float value) {
  SafetensorsFile file;
  FileTensor tensor{DType::kFloat32, Shape{1}, std::vector<std::byte>(4)};
  std::memcpy(tensor.bytes.data(), &value, 4);
  file.tensors["model.weight"] = tensor;
  file.metadata["step"] = std::to_string(7);
  return file;
}

float value_of(const SafetensorsFile& file) {
  float value = 0.0f;
  std::memcpy(&value, file.tensors.at("model.weight").bytes.data(), 4);
  return value;
}

void save(const CheckpointFolder& checkpoints, std::int64_t step, int keep, int ranks = 2) {
  checkpoints.begin(step);
  std::vector<FileDigest> files;
  for (int rank = 0; rank < ranks; ++rank)
    files.push_back(checkpoints.write(step, rank, file_of(static_cast<float>(step * 10 + rank))));
  checkpoints.complete(step, keep, files);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

SafetensorsFile state_of(int rank) {
  SafetensorsFile file;
  file.tensors["model.weight"] = {DType::kUInt8, Shape{1}, {static_cast<std::byte>(rank)}};
  return file;
}

}  // namespace

TEST_CASE("apps/checkpoint: what was written is read back, and the newest are kept") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  CHECK(!checkpoints.newest());
  save(checkpoints, 5, 2);
  CHECK(checkpoints.newest() == 5);
  CHECK(names_in(checkpoints.step_folder(5)) ==
        std::set<std::string>{"DONE", "rank-0.safetensors", "rank-1.safetensors"});
  for (const std::int64_t step : {10, 100, 20}) save(checkpoints, step, 3);
  CHECK(checkpoints.newest() == 100);
  CHECK(names_in(folder / "checkpoints") ==
        std::set<std::string>{"step-10", "step-100", "step-20"});
  save(checkpoints, 101, 2);
  CHECK(names_in(folder / "checkpoints") == std::set<std::string>{"step-100", "step-101"});
  CHECK(value_of(checkpoints.read(101, 1)) == 1011.0f);
  CHECK(checkpoints.read(100, 0).metadata.at("step") == "7");
  save(checkpoints, 102, 1);
  CHECK(names_in(folder / "checkpoints") == std::set<std::string>{"step-102"});
  save(checkpoints, 102, 0);  // the one just written always stays
  CHECK(checkpoints.newest() == 102);
}

TEST_CASE("apps/checkpoint: incomplete ones do not count and go away") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  save(checkpoints, 10, 2);
  checkpoints.begin(20);
  checkpoints.write(20, 0, file_of(1.0f));
  CHECK(checkpoints.newest() == 10);  // as after a crash in the middle of step 20
  CHECK(fails(ExitCode::kUsage, "step-20", [&] { checkpoints.read(20, 0); }));

  // Names that are none of ours are left alone.
  for (const std::string name : {"step-", "step-x", "step-0x10", "step-007", "step--3", "other"})
    fs::create_directories(folder / ("checkpoints/" + name));
  write_bytes(folder / "checkpoints/step-99", {1});
  CHECK(checkpoints.newest() == 10);

  save(checkpoints, 30, 5);
  const auto names = names_in(folder / "checkpoints");
  CHECK(names.count("step-20") == 0);
  CHECK(names.count("step-10") == 1);
  CHECK(names.count("other") == 1);
  CHECK(names.count("step-007") == 1);
}

TEST_CASE("apps/checkpoint: beginning a step again empties it") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  save(checkpoints, 10, 2, 4);
  checkpoints.begin(10);
  CHECK(names_in(checkpoints.step_folder(10)).empty());
  CHECK(!checkpoints.newest());
  checkpoints.complete(10, 2, {checkpoints.write(10, 0, file_of(3.0f))});
  CHECK(names_in(checkpoints.step_folder(10)) ==
        std::set<std::string>{"DONE", "rank-0.safetensors"});
}

TEST_CASE("apps/checkpoint: damaged, missing and unwritable ones are errors with the file's name") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  save(checkpoints, 10, 2);
  CHECK(fails(ExitCode::kUsage, "step-11", [&] { checkpoints.read(11, 0); }));
  CHECK(fails(ExitCode::kUsage, checkpoints.rank_file(10, 2), [&] { checkpoints.read(10, 2); }));
  const std::string bytes = read_text(checkpoints.rank_file(10, 1));
  write_bytes(checkpoints.rank_file(10, 1), Bytes(bytes.begin(), bytes.end() - 1));
  CHECK(fails(ExitCode::kUsage, checkpoints.rank_file(10, 1), [&] { checkpoints.read(10, 1); }));

  write_bytes(folder / "file", {1});
  CHECK(fails(ExitCode::kOutput, folder / "file",
              [&] { CheckpointFolder(folder / "file").begin(1); }));
}

TEST_CASE("apps/checkpoint: what DONE does not say is damage, and is set aside") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  for (const std::int64_t step : {10, 20}) save(checkpoints, step, 5);
  CHECK(checkpoints.ranks(20) == 2);
  CHECK(checkpoints.newest(20) == 10);
  CHECK(!checkpoints.newest(10));
  // One rank's file of another step.
  fs::copy_file(checkpoints.rank_file(10, 1), checkpoints.rank_file(20, 1),
                fs::copy_options::overwrite_existing);
  CHECK(fails(ExitCode::kUsage, "tensor 'model.weight'", [&] { checkpoints.read(20, 1); }));
  CHECK(value_of(checkpoints.read(20, 0)) == 200.0f);
  const std::string done = checkpoints.step_folder(20) + "/DONE", good = read_text(done);
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() / 2), std::string("step 10\n"),
        std::string("{\"step\": 20}"),
        std::string("{\"step\": 20, \"files\": {\"rank-0.safetensors\": 3}}"), good + "\n",
        good + " ", good + std::string(3, '\0'), good + "{}", good.substr(0, good.size() - 1)}) {
    CAPTURE(bad);
    write_bytes(done, Bytes(bad.begin(), bad.end()));
    CHECK(fails(ExitCode::kUsage, done, [&] { checkpoints.read(20, 0); }));
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    CAPTURE(at);
    std::string bad = good;
    bad[at] ^= 4;
    write_bytes(done, Bytes(bad.begin(), bad.end()));
    CHECK(fails(ExitCode::kUsage, done, [&] { checkpoints.read(20, 0); }));
  }
  const std::size_t line = good.find('\n', 2) + 1;
  CHECK(good.substr(0, line) ==
        "{\n \"checksum\": \"" + checksum("{\n" + good.substr(line)) + "\",\n");
  // Of older versions: with a list but without its checksum, and without either.
  std::string unproved = good;
  unproved.erase(2, line - 2);
  write_bytes(done, Bytes(unproved.begin(), unproved.end()));
  CHECK(value_of(checkpoints.read(20, 0)) == 200.0f);
  unproved += '\0';
  write_bytes(done, Bytes(unproved.begin(), unproved.end()));
  CHECK(fails(ExitCode::kUsage, done, [&] { checkpoints.read(20, 0); }));
  const std::string old = "step 20\n";
  write_bytes(done, Bytes(old.begin(), old.end()));
  CHECK(checkpoints.ranks(20) == 2);
  CHECK(value_of(checkpoints.read(20, 1)) == 101.0f);
  CHECK(checkpoints.set_aside(20).empty());
  CHECK(names_in(folder / "checkpoints") == std::set<std::string>{"step-10", "step-20.damaged"});
  CHECK(checkpoints.newest() == 10);
}

TEST_CASE("apps/checkpoint: a tensor that is not where a file says it to be is damage") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  const auto refused = [&](const std::string& shared) {
    checkpoints.begin(10);
    SafetensorsFile second = file_of(1.0f);
    second.metadata[kSharedTensors] = shared;
    FileDigest written;
    try {
      written = checkpoints.write(10, 1, second);
    } catch (const Error& error) {
      return error.parts().message();
    }
    checkpoints.complete(10, 2, {checkpoints.write(10, 0, file_of(2.0f)), written});
    return error_of(ExitCode::kUsage, [&] { checkpoints.read(10, 1); });
  };
  CHECK(contains(refused(R"({"other": 0})"), "rank-0.safetensors"));
  CHECK(contains(refused(R"({"other": 0})"), "lacks the tensor other"));
  CHECK(contains(refused(R"({"model.weight": 1})"), "lacks the tensor model.weight"));
  CHECK(contains(refused(R"({"model.weight": 7})"), "rank-7.safetensors"));
  CHECK(contains(refused(R"({"model.weight": "0"})"), "shared_tensors"));
  CHECK(contains(refused("[]"), "shared_tensors"));
  CHECK(contains(refused("{"), "shared_tensors"));
}

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
  auto first = FolderLock::take(folder.path());
  fs::remove(folder / FolderLock::kName);  // as in a folder that was moved away, and made again
  const auto second = FolderLock::take(folder.path());
  first.reset();
  CHECK(fs::exists(folder / FolderLock::kName));
}
