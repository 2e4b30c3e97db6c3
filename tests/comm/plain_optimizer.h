#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace starling::test {

/// One rank's optimizer (semantics.md section 7): SGD, Adam or AdamW in fp64, its states and its s.
class PlainOptimizer {
 public:
  PlainOptimizer(const nlohmann::json& config, std::vector<bool> decays);

  /// U(c, g).
  std::vector<double> update(std::vector<double> c, std::vector<double> g, double lr);

  const std::string& type() const { return type_; }
  double momentum() const { return momentum_; }
  bool nesterov() const { return nesterov_; }
  double beta1() const { return beta1_; }
  double beta2() const { return beta2_; }
  double eps() const { return eps_; }
  double weight_decay(std::size_t element) const { return decays_[element] ? weight_decay_ : 0.0; }

  std::vector<std::vector<double>> states;  ///< [state][element]: SGD's buffer; or m and v
  int s = 0;                                ///< updates so far

 private:
  std::string type_;
  std::vector<bool> decays_;
  double momentum_;
  bool nesterov_;
  double beta1_, beta2_, eps_, noise_ranks_, weight_decay_;
};

}  // namespace starling::test
