// A folder of shards. The first byte says whether the rest is the index or the one shard that a valid index means.
#include <array>

#include "apps/trainer/shards/shard_set.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  const bool shard = size > 0 && data[0] % 2 == 1;
  const std::string_view content = fuzz::text(data, size).substr(std::min<std::size_t>(size, 1));
  return fuzz::reads_or_refuses([&] {
    if (!shard) {
      fuzz::file("shards.index", content);
      const ShardIndex index = read_shard_index(fuzz::folder());
      if (shard_index_text(index) != content) std::abort();  // what is read as whole is what would be written
      return;
    }
    const ShardFile file(fuzz::file("train-00000.shard", content));
    for (std::int64_t record = 0; record < file.records(); ++record) (void)file.bytes(record);
  });
}
