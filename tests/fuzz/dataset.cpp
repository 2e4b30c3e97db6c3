// IDX files (MNIST, plain and gzip) and CIFAR's batches. The first byte says which file the rest
// is.
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/data/dataset.h"
#include "core/config.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace starling;

/// IDX: a magic number, the dimensions, then bytes.
std::string idx(std::initializer_list<unsigned char> dimensions, std::size_t bytes) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(dimensions.size())};
  for (const unsigned char dimension : dimensions)
    text += std::string{'\0', '\0', '\0', static_cast<char>(dimension)};
  return text + std::string(bytes, '\1');
}

const std::array<const char*, 4> kNames{"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                        "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

void open(const char* type) {
  static const bool once = (register_builtin_datasets(), true);
  (void)once;
  ConfigSection section(nlohmann::json{{"path", fuzz::folder()}}, "fuzz.json");
  const auto dataset = datasets().make(type, "data.type", section, 1);
  dataset->open();
  const DatasetInfo info = dataset->info();
  std::vector<std::byte> image(3 * 32 * 32);
  std::int32_t label = 0;
  const std::array<std::byte*, 2> out{image.data(), reinterpret_cast<std::byte*>(&label)};
  for (const std::int64_t sample : {std::int64_t{0}, info.train_samples - 1}) {
    dataset->read(Dataset::Split::kTrain, sample, out);
    if (label < 0 || label >= info.classes) std::abort();
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::size_t which = size > 0 ? data[0] % 5 : 0;
  const std::string_view content = fuzz::text(data, size).substr(std::min<std::size_t>(size, 1));
  return fuzz::reads_or_refuses([&] {
    if (which == 4) {
      static const bool once = [] {
        std::filesystem::create_directories(fuzz::folder() + "/cifar-10-batches-bin");
        for (const char* name :
             {"data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"})
          fuzz::file(std::string("cifar-10-batches-bin/") + name + ".bin", std::string(3073, '\1'));
        return true;
      }();
      (void)once;
      fuzz::file("cifar-10-batches-bin/data_batch_1.bin", content);
      open("cifar10");
      return;
    }
    const std::array<std::string, 4> whole{idx({2, 28, 28}, 2 * 784), idx({2}, 2),
                                           idx({2, 28, 28}, 2 * 784), idx({2}, 2)};
    for (std::size_t k = 0; k < kNames.size(); ++k)
      fuzz::file(kNames[k], k == which ? content : std::string_view(whole[k]));
    open("fashion_mnist");
  });
}
