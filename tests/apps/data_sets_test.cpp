// What holds for every data set: which samples it has, that they are the same each time, on any
// number of threads, from memory and in a run that goes on; and that what is not there or cut off
// is named before there is a folder. A data set is a row of data_sets(); what is special to a
// format stands in a file of its own.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/shards/prepare_images.h"
#include "core/config.h"
#include "tests/apps/chat_files.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

struct DataSet {
  std::string keys;                          ///< of `data`, but for the path
  std::function<void(const Program&)> make;  ///< writes what is in the folder data
  std::string path;                          ///< the key's value, below that folder
  std::string model;
  std::vector<std::int64_t> labels;  ///< of the training samples, in order; empty: has none
  std::int64_t train = 0, tests = 0;
  std::string file;  ///< one that training reads
  int cut = 33;      ///< bytes of it that are too few
};

constexpr const char* kMlp = R"({"type": "mlp", "hidden": [4]})";

std::string bytes_of(std::size_t count, std::size_t salt) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>((i * 13 + salt * 7) % 251);
  return bytes;
}
/// IDX: how many, by 28×28 where they are images.
std::string idx(std::uint8_t count, bool images) {
  std::string bytes{'\0', '\0', '\x08', images ? '\3' : '\1',
                    '\0', '\0', '\0',   static_cast<char>(count)};
  if (images) return bytes + std::string("\0\0\0\x1c\0\0\0\x1c", 8) + bytes_of(count * 784U, count);
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(i * 3 % 10);
  return bytes;
}
/// Eight training and four test pictures of each of two classes.
void write_pictures(const Program& program, const std::string& folder) {
  const std::string copy = "copy " + program.root() + "/tests/golden/pictures/";
  for (int i = 0; i < 12; ++i) {
    const std::string name =
        (i < 8 ? "train/" : "val/") + std::string("{}/") + std::to_string(i) + ".{}";
    program.play(copy + "420.jpg " + folder + "/" + fmt::format(fmt::runtime(name), "ant", "jpg"));
    program.play(copy + "rgb8.png " + folder + "/" + fmt::format(fmt::runtime(name), "bee", "png"));
  }
}

std::vector<std::int64_t> numbers(std::int64_t count, std::int64_t step, std::int64_t modulus) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(i * step % modulus);
  return result;
}

std::vector<DataSet> data_sets() {
  const std::string chat =
      R"("tokenizer": "data/tokenizer.json", "template": "plain", "sequence_length": 64,
         "val_fraction": 0.25)";
  const auto write_chat = [](const Program& program) {
    program.write("data/tokenizer.json",
                  test::tokenizer_json({}, "gpt2", program.root() + "/tests").dump());
    program.write("data/c.jsonl", test::chat_lines(72));
  };
  const std::string pictures = R"("image_size": 8, "test_resize": 8, "test_crop": 8)";
  const std::vector<std::int64_t> ants_bees{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  return {
      {.keys = R"("type": "cifar10")",
       .make =
           [](const Program& program) {
             for (std::size_t f = 0; f < 6; ++f) {
               std::string records;
               for (std::size_t i = 4 * f; i < 4 * f + 4; ++i)
                 records += static_cast<char>(i % 10) + bytes_of(3072, i);
               program.write(
                   f < 5 ? fmt::format("data/data_batch_{}.bin", f + 1) : "data/test_batch.bin",
                   records);
             }
           },
       .model = kMlp,
       .labels = numbers(20, 1, 10),
       .train = 20,
       .tests = 4,
       .file = "data_batch_3.bin"},
      {.keys = R"("type": "mnist")",
       .make =
           [](const Program& program) {
             program.write("data/train-images-idx3-ubyte", idx(20, true));
             program.write("data/train-labels-idx1-ubyte", idx(20, false));
             program.write("data/t10k-images-idx3-ubyte", idx(4, true));
             program.write("data/t10k-labels-idx1-ubyte", idx(4, false));
           },
       .model = kMlp,
       .labels = numbers(20, 3, 10),
       .train = 20,
       .tests = 4,
       .file = "train-images-idx3-ubyte"},
      {.keys = R"("type": "image_folder", )" + pictures,
       .make = [](const Program& program) { write_pictures(program, "data"); },
       .model = kMlp,
       .labels = ants_bees,
       .train = 16,
       .tests = 8,
       .file = "train/bee/0.png"},
      {.keys = R"("type": "shards", )" + pictures,
       .make =
           [](const Program& program) {
             write_pictures(program, "pictures");
             prepare_images({.source = "pictures", .destination = "data"}, {});
           },
       .model = kMlp,
       .labels = ants_bees,
       .train = 16,
       .tests = 8,
       .file = "train-00000.shard"},
      {.keys = R"("type": "csv", "target": "kind", "val_fraction": 0.2)",
       .make =
           [](const Program& program) {
             std::string text = "a,kind\n";
             for (int r = 0; r < 20; ++r) text += fmt::format("{},{}\n", r, r % 2 ? "b" : "a");
             program.write("data/t.csv", text);
           },
       .path = "/t.csv",
       .model = kMlp,
       .train = 16,
       .tests = 4,
       .file = "t.csv",
       .cut = 0},
      {.keys = R"("type": "text", "sequence_length": 8)",
       .make = [](const Program& program) { program.write("data/t.txt", bytes_of(181, 1)); },
       .path = "/t.txt",
       .model = R"({"type": "gpt2", "layers": 1, "heads": 1, "width": 4, "context": 8})",
       .train = 20,
       .tests = 2,
       .file = "t.txt",
       .cut = 0},
      {.keys = R"("type": "tokens", "sequence_length": 8, "vocab": 65536)",
       .make =
           [](const Program& program) {
             program.write("data/train.bin", bytes_of(322, 1));
             program.write("data/val.bin", bytes_of(34, 2));
           },
       .model = R"({"type": "gpt2", "layers": 1, "heads": 1, "width": 4, "context": 8})",
       .train = 20,
       .tests = 2,
       .file = "train.bin"},
      {.keys = R"("type": "chat", )" + chat,
       .make = write_chat,
       .path = "/c.jsonl",
       .model = R"({"type": "gpt2", "layers": 1, "heads": 1, "width": 4, "context": 64})",
       .train = 54,
       .tests = 18,
       .file = "c.jsonl",
       .cut = 0},
      {.keys = R"("type": "chat", "pack": true, )" + chat,
       .make = write_chat,
       .path = "/c.jsonl",
       .model = R"({"type": "llama", "layers": 1, "heads": 1, "width": 4, "context": 64})",
       .train = 32,
       .tests = 11,
       .file = "c.jsonl",
       .cut = 0},
  };
}

/// All bytes of a split's samples.
std::vector<std::byte> bytes_in(const Dataset& dataset, Dataset::Split split, std::int64_t count) {
  const DatasetInfo info = dataset.info();
  std::vector<std::byte> all;
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::byte*> out;
    for (const TensorInfo& tensor : info.tensors) {
      parts.emplace_back(static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype));
      out.push_back(parts.back().data());
    }
    dataset.read(split, i, out);
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::unique_ptr<Dataset> opened_set(const nlohmann::json& keys, bool classes) {
  register_builtin_datasets();
  ConfigSection section(keys, "test.json");
  auto dataset = datasets().make(section.required_text("type", ""), "data.type", section, 1);
  section.finish();
  if (classes) dataset->use_task("classification");
  dataset->open();
  return dataset;
}

}  // namespace

TEST_CASE("data sets: order, labels, names, and the same samples each time") {
  using Split = Dataset::Split;
  for (const DataSet& set : data_sets()) {
    CAPTURE(set.keys);
    const Program program;
    std::filesystem::create_directory("data");
    set.make(program);
    nlohmann::json keys = nlohmann::json::parse("{" + set.keys + "}");
    keys["path"] = "data" + set.path;
    const bool classes = keys["type"] == "csv" || !set.labels.empty();
    const auto one = opened_set(keys, classes), other = opened_set(keys, classes);
    const DatasetInfo info = one->info();
    CHECK(info.train_samples == set.train);
    CHECK(info.test_samples == set.tests);
    for (const auto& [split, count] :
         {std::pair{Split::kTrain, set.train}, {Split::kTest, set.tests}}) {
      CHECK(bytes_in(*one, split, count) == bytes_in(*other, split, count));
      CHECK(bytes_in(*one, split, count) == bytes_in(*one, split, count));
      for (std::int64_t i = 0; classes && i < count; ++i) {
        const std::int64_t label = one->label(split, i);
        CHECK((label >= 0 && label < info.classes));
        if (split == Split::kTrain && !set.labels.empty())
          CHECK(label == set.labels[static_cast<std::size_t>(i)]);
      }
    }
    if (!keys.contains("val_fraction") && keys["type"] != "image_folder" &&
        keys["type"] != "shards") {
      keys["limit"] = 3, keys["test_limit"] = 1;
      const auto few = opened_set(keys, classes);
      CHECK(few->info().train_samples == 3);
      CHECK(few->info().test_samples == 1);
      CHECK(bytes_in(*few, Split::kTrain, 3) == bytes_in(*one, Split::kTrain, 3));
      CHECK(bytes_in(*few, Split::kTest, 1) == bytes_in(*one, Split::kTest, 1));
    }
  }
}

TEST_CASE(
    "data sets: a run is planned, repeats itself, goes on to the bit, and names what is wrong") {
  for (const DataSet& set : data_sets()) {
    CAPTURE(set.keys);
    const Program program;
    std::filesystem::create_directory("data");
    set.make(program);
    program.write("run.json", R"({"data": {)" + set.keys + R"(, "path": "data)" + set.path +
                                  R"("}, "model": )" + set.model + R"(,
    "batch_size": 2, "steps": 8, "log_every": 1, "threads": 1, "tensorboard": false,
    "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.9}, "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_epochs": 0, "keep": 9}, "sync": {"transport": "mpi"})" +
                                  (set.keys.find("csv") == std::string::npos
                                       ? "}"
                                       : R"(, "task": {"type": "classification"}})"));
    const std::string moved = " | data.path=moved" + set.path, file = "moved/" + set.file;
    program.play(R"table(
0 2 | a plan | in all | run.json --dry-run
0 2 | a run | done | run.json --output whole
0 2 | tested, saved, and read by three threads | done | run.json --output often | data.threads=3 | evaluate.every_steps=3 | checkpoint.every_steps=3
same whole often
losses whole often
0 2 | from memory | done | run.json --output cached | data.cache=memory
same whole cached
copy data moved
forget often 6 8
0 2 | goes on in the middle of an epoch, with the same data at another place | continuing after step 3 | run.json --output often --resume latest)table" +
                 moved + R"table(
same whole often
2 2 | what is not there | nowhere | run.json --output out | data.path=nowhere)table" +
                 set.path + "\ncut " + file + " " + std::to_string(set.cut) + "\n2 2 | cut off | " +
                 set.file + " | run.json --output out" + moved + "\nremove " + file + "\npipe " +
                 file + "\n2 2 | a pipe, for which nobody waits | " + set.file +
                 ".*it is a pipe|needed: " + set.file + " | run.json --output piped" + moved);
  }
}

}  // namespace starling
