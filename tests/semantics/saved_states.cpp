#include "saved_states.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "topology/check.h"
#include "topology/topology.h"

namespace starling::test {
namespace {

class SavedStates {
 public:
  SavedStates(const std::string& folder, int ranks) {
    for (int r = 0; r < ranks; ++r) files_.push_back(read_safetensors(fmt::format("{}/rank-{}.safetensors", folder, r)));
  }
  std::size_t ranks() const { return files_.size(); }
  const SafetensorsFile& file(std::size_t rank) const { return files_[rank]; }
  /// The parameters' names.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, tensor] : files_[0].tensors) {
      if (name.starts_with("model.")) result.push_back(name.substr(6));
    }
    return result;
  }
  std::vector<double> of(std::size_t rank, const std::string& name) const {
    const auto it = files_[rank].tensors.find(name);
    require(it != files_[rank].tensors.end() && it->second.dtype == DType::kFloat64, "test", "rank {} saved no fp64 {}", rank, name);
    std::vector<double> numbers(it->second.bytes.size() / sizeof(double));
    std::memcpy(numbers.data(), it->second.bytes.data(), it->second.bytes.size());
    return numbers;
  }
  bool same_bits(std::size_t a, const std::string& name, std::size_t b, const std::string& other) const {
    const auto& one = files_[a].tensors.at(name).bytes;
    const auto& two = files_[b].tensors.at(other).bytes;
    return std::equal(one.begin(), one.end(), two.begin(), two.end());
  }
  /// The largest |Σ over the ranks of Σ factor · tensor|, for all parameters.
  double largest_sum(const std::vector<std::pair<double, std::string>>& terms) const {
    double largest = 0.0;
    for (const std::string& name : names()) {
      std::vector<double> total(of(0, "model." + name).size(), 0.0);
      for (std::size_t r = 0; r < ranks(); ++r) {
        for (const auto& [factor, prefix] : terms) {
          const std::vector<double> numbers = of(r, prefix + name);
          for (std::size_t e = 0; e < total.size(); ++e) total[e] += factor * numbers[e];
        }
      }
      for (const double value : total)
        largest = std::max(largest, std::isnan(value) ? std::numeric_limits<double>::infinity() : std::abs(value));
    }
    return largest;
  }

 private:
  std::vector<SafetensorsFile> files_;
};

Round first_round(const nlohmann::json& config, int ranks) {
  ConfigSection section(config["sync"]["topology"], "topology");
  return make_topology(section, {ranks, 1}, TopologyKind::kSymmetricFixed)->round(0);
}

double fault_of_replicas(const SavedStates& saved, const Round& round, bool exchanged) {
  for (const std::string& name : saved.names()) {
    for (std::size_t i = 0; i < saved.ranks(); ++i) {
      if (exchanged && !saved.same_bits(i, "sync.replica.0." + name, i, "model." + name)) return std::numeric_limits<double>::infinity();
      int k = 0;
      for (const auto& [j, weight] : Topology::row(round, static_cast<int>(i))) {
        const auto other = static_cast<std::size_t>(j);
        if (other != i && !saved.same_bits(i, fmt::format("sync.replica.{}.{}", ++k, name), other, "sync.replica.0." + name))
          return std::numeric_limits<double>::infinity();
      }
      require(k > 0, "test", "rank {} has no neighbour", i);
    }
  }
  return 0.0;
}

double fault_of_beliefs(const SavedStates& saved, const Round& round) {
  double largest = 0.0;
  for (const std::string& name : saved.names()) {
    for (std::size_t i = 0; i < saved.ranks(); ++i) {
      std::vector<double> rest = saved.of(i, "sync.r." + name);
      for (const auto& [j, weight] : Topology::row(round, static_cast<int>(i))) {
        const std::vector<double> believed = saved.of(static_cast<std::size_t>(j), "sync.x_hat." + name);
        for (std::size_t e = 0; e < rest.size(); ++e) rest[e] -= weight * believed[e];
      }
      for (const double value : rest) largest = std::max(largest, std::abs(value));
    }
  }
  return largest;
}

/// Every rank's weight is that of its mean model, and they sum to the number of ranks.
double fault_of_weights(const SavedStates& saved) {
  double total = 0.0, largest = 0.0;
  for (std::size_t r = 0; r < saved.ranks(); ++r) {
    const double weight = saved.of(r, "sync.omega").at(0);
    total += weight;
    largest = std::max(largest, std::abs(weight - std::strtod(saved.file(r).metadata.at("mean_weight").c_str(), nullptr)));
  }
  return std::max(largest, std::abs(total - static_cast<double>(saved.ranks())));
}

}  // namespace

double fault_of_saved_states(const std::string& folder, int ranks, const nlohmann::json& config, std::string& said) {
  const nlohmann::json& algorithm = config["sync"]["algorithm"];
  const std::string type = algorithm["type"];
  if (!config["sync"].value("switch", nlohmann::json::array()).empty()) return 0.0;  // of what the first algorithm kept nothing is left
  const SavedStates saved(folder, ranks);
  if (type == "gradient_tracking") {
    said = "Σ y - Σ g";
    return saved.largest_sum({{1.0, "sync.y."}, {-1.0, "sync.g."}});
  }
  if (type == "momentum_tracking") {
    said = "Σ c";
    return saved.largest_sum({{1.0, "sync.z."}, {1.0, "optimizer.momentum_buffer."}});
  }
  if (type == "low_precision") {
    said = "replicas";
    return fault_of_replicas(saved, first_round(config, ranks), config["steps"].get<int>() % algorithm["interval"].get<int>() == 0);
  }
  if (type == "choco") {
    said = "r - Σ W x̂";
    return fault_of_beliefs(saved, first_round(config, ranks));
  }
  if (type == "push_sum") {
    said = "ω";
    return fault_of_weights(saved);
  }
  return 0.0;
}

}  // namespace starling::test
