#include "apps/training/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/host_numbers.h"
#include "comm/agreement.h"
#include "core/checksum.h"
#include "core/host.h"
#include "core/trace.h"

namespace starling {
namespace {

constexpr std::size_t kDigest = 16;  // digits
constexpr const char* kRemedy =
    "a memory, a core or a GPU of such a host may be at fault: test it, leave it out, and continue "
    "with --resume latest";

/// "rank 1 on host b".
std::string with_hosts(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ");
    text += fmt::format("rank {} on host {}", ranks[i], hosts[static_cast<std::size_t>(ranks[i])]);
  }
  return text;
}

/// What is compared: names and their digests, the same names on all ranks.
struct Digests {
  std::vector<std::string> names;
  std::string all;  ///< kDigest digits each
};

Digests digests_of(const Trainer& trainer) {
  const std::vector<Bucket>& buckets = trainer.buckets();
  const AlgorithmEquality& equality = trainer.algorithm().equality;
  const bool always = equality.always();
  Digests digests;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    const auto whole = [&](const Tensor& own) { return whole_in(trainer.replica(), bucket, own); };
    const bool equal =
        always || (equality.after && equality.after(trainer.algorithm_steps(), static_cast<int>(b),
                                                    static_cast<int>(buckets.size())));
    if (equal) {
      const HostBytes parameters(whole(bucket.parameters));
      const std::size_t size = size_of(bucket.parameters.dtype());
      for (const BucketSlot& slot : bucket.layout->slots) {
        digests.names.push_back("'" + slot.parameter->name + "'");
        digests.all += checksum(parameters.data() + static_cast<std::size_t>(slot.offset) * size,
                                static_cast<std::size_t>(slot.elements) * size);
      }
    }
    for (std::size_t k = 0; equal && (always || equality.rule_states) && k < bucket.states.size();
         ++k) {
      digests.names.push_back(fmt::format("state {} of the optimizer, bucket {}", k, b));
      digests.all += tensor_checksum(whole(bucket.states[k]));
    }
    for (std::size_t k = 0;
         k < std::min(bucket.sync.size(), static_cast<std::size_t>(equality.equal_states)); ++k) {
      digests.names.push_back(fmt::format("sync.{}, bucket {}", bucket.sync[k].name, b));
      digests.all += tensor_checksum(whole(bucket.sync[k].numbers));
    }
  }
  return digests;
}

/// The ranks whose text is not that of more than half of them; all where there is no such half.
std::vector<int> odd_ones(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int>> groups;
  for (std::size_t i = 0; i < texts.size(); ++i) groups[texts[i]].push_back(static_cast<int>(i));
  std::vector<int> odd;
  for (const auto& [text, ranks] : groups) {
    if (2 * ranks.size() <= texts.size()) odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(odd);
  return odd;
}

void compare_equal(Trainer& trainer) {
  World& world = trainer.transport().world();
  const Digests mine = digests_of(trainer);
  if (mine.names.empty()) return;  // ranks have not met in this step; the same on all
  const std::vector<std::string> short_ones = world.all_gather(checksum(mine.all));
  if (std::ranges::count(short_ones, short_ones.front()) == world.size()) return;
  // All know now that they differ: where, and who.
  const std::vector<std::string> all = world.all_gather(mine.all),
                                 hosts = world.all_gather(host_name());
  const std::vector<int> odd = odd_ones(short_ones);
  const bool known = static_cast<int>(odd.size()) < world.size();
  std::size_t first = mine.names.size(), count = 0;
  for (std::size_t k = 0; k < mine.names.size(); ++k) {
    const auto differs = [&](const std::string& text) {
      return text.compare(k * kDigest, kDigest, all.front(), k * kDigest, kDigest) != 0;
    };
    if (std::ranges::none_of(all, differs)) continue;
    first = std::min(first, k);
    ++count;
  }
  const std::string where = fmt::format("{}{}", mine.names[first],
                                        count > 1 ? fmt::format(" and {} more", count - 1) : "");
  const ErrorPlace place{
      .key = {}, .rank = known && odd.size() == 1 ? odd.front() : -1, .step = trainer.steps_done()};
  if (known) {
    fail_on_all_ranks(ExitCode::kLost, "verify", place,
                      "after step {} {} {} not what the other {} ranks hold, in {}, where all must "
                      "be equal to the bit; {}",
                      trainer.steps_done(), with_hosts(odd, hosts), odd.size() == 1 ? "is" : "are",
                      static_cast<std::size_t>(world.size()) - odd.size(), where, kRemedy);
  }
  fail_on_all_ranks(ExitCode::kLost, "verify", place,
                    "after step {} {} differ in {}, where they must be equal to the bit, and it "
                    "cannot be known which is right; {}",
                    trainer.steps_done(), with_hosts(odd, hosts), where, kRemedy);
}

/// Σ ±x: notices where few elements are wrong, and adds up over ranks as their vectors do.
struct Projection {
  double sum = 0.0, size = 0.0;  ///< and Σ |x|
  template <class T>
  void add(const Tensor& tensor, double weight) {
    const HostBytes bytes(tensor);
    const std::span<const T> numbers(reinterpret_cast<const T*>(bytes.data()),
                                     static_cast<std::size_t>(tensor.elements()));
    constexpr std::size_t kLanes = 8;  // independent of each other
    std::array<double, kLanes> sums{}, sizes{};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double value = static_cast<double>(numbers[i]);
      // A sign that looks random: a bit of the index times an odd number.
      sums[i % kLanes] += (i * std::uint64_t{0x9e3779b97f4a7c15} >> 63) != 0 ? value : -value;
      sizes[i % kLanes] += std::abs(value);
    }
    sum += weight * std::accumulate(sums.begin(), sums.end(), 0.0);
    size += std::abs(weight) * std::accumulate(sizes.begin(), sizes.end(), 0.0);
  }
  void add(const Tensor& tensor, double weight) {
    if (weight == 0.0) return;
    tensor.dtype() == DType::kFloat64 ? add<double>(tensor, weight) : add<float>(tensor, weight);
  }
};

void compare_mix(Trainer& trainer) {
  World& world = trainer.transport().world();
  const std::vector<Bucket>& buckets = trainer.buckets();
  const auto n = static_cast<std::size_t>(world.size());
  // Digests by bucket: the rank's own, and behind them what it received, as "b from digest".
  std::string mine, received;
  std::vector<double> sums(3 * buckets.size(), 0.0);  // of x, of the mix, and of |x|, by bucket
  // A replica's ranks mix their parts, with those at the same place of others.
  const auto step = static_cast<std::size_t>(trainer.replica() ? trainer.replica()->size() : 1);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Tensor parameters = buckets[b].own_part(buckets[b].parameters);
    mine += tensor_checksum(parameters);
    const Mixer::Arrived arrived = trainer.mixer().arrived(static_cast<int>(b));
    Projection before, after;
    before.add(parameters, 1.0);
    if (!arrived.exchange || arrived.received->empty()) {
      after = before;
    } else {
      const Exchange& exchange = *arrived.exchange;
      const std::vector<Tensor>& from = *arrived.received;
      after.add(parameters, exchange.self_weight);
      for (std::size_t k = 0; k < from.size(); ++k)
        after.add(from[k], exchange.weights[std::min(k, exchange.weights.size() - 1)]);
      for (std::size_t k = 0; exchange.kind == Exchange::Kind::kNeighbours && k < from.size(); ++k)
        received +=
            fmt::format("{} {} {}\n", b, exchange.receive_from[k], tensor_checksum(from[k]));
    }
    sums[3 * b] = before.sum;
    sums[3 * b + 1] = after.sum;
    sums[3 * b + 2] = before.size;
  }
  const std::vector<std::string> all = world.all_gather(mine + received),
                                 hosts = world.all_gather(host_name());
  world.sum(sums.data(), sums.size());
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t at = buckets.size() * kDigest;
    while (at < all[i].size()) {
      const std::size_t end = all[i].find('\n', at);
      const std::string line = all[i].substr(at, end - at);
      at = end + 1;
      const std::size_t space = line.find(' '), second = line.find(' ', space + 1);
      const auto bucket = static_cast<std::size_t>(std::stoll(line));
      const auto j = static_cast<std::size_t>(std::stoll(line.substr(space + 1))) * step + i % step;
      if (all[j].compare(bucket * kDigest, kDigest, line, second + 1, kDigest) == 0) continue;
      fail_on_all_ranks(ExitCode::kLost, "verify",
                        {.step = trainer.steps_done(), .bucket = static_cast<int>(bucket)},
                        "after step {} {} holds other numbers of bucket {} than {} has sent it, so "
                        "one of their memories, or what is between them, is at fault; test those "
                        "hosts, leave them out, and continue with --resume latest",
                        trainer.steps_done(), with_hosts({static_cast<int>(i)}, hosts), bucket,
                        with_hosts({static_cast<int>(j)}, hosts));
    }
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const double change = std::abs(sums[3 * b + 1] - sums[3 * b]);
    // Sums over groups are made in the parameters' own format.
    const double epsilon = buckets[b].parameters.dtype() == DType::kFloat64
                               ? std::numeric_limits<double>::epsilon()
                               : static_cast<double>(std::numeric_limits<float>::epsilon());
    const double limit = epsilon * static_cast<double>(n) * sums[3 * b + 2];
    if (change <= limit) continue;
    fail_on_all_ranks(ExitCode::kLost, "verify",
                      {.step = trainer.steps_done(), .bucket = static_cast<int>(b)},
                      "the mix after step {} does not keep the mean over the ranks in bucket {}: a "
                      "sum over its numbers changes by {:.3g}, where rounding allows {:.3g}; {}",
                      trainer.steps_done(), b, change, limit, kRemedy);
  }
}

}  // namespace

void verify_replicas(Trainer& trainer) {
  if (trainer.transport().size() == 1) return;
  const TraceSpan span("verify", std::to_string(trainer.steps_done()));
  trainer.finish();
  trainer.backend().synchronize();
  if (trainer.algorithm().equality.any()) return compare_equal(trainer);
  compare_mix(trainer);
}

}  // namespace starling
