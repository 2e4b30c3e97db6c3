#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace starling {

struct PlanOptions {
  int ranks = 0, ranks_per_node = 1;
  std::string measured;
  double bandwidth_gbits = 0.0, latency_us = 0.0;       ///< between hosts
  double inside_gbytes = 0.0, inside_latency_us = 0.0;  ///< inside a host, by messages
  double memory_gbytes = 0.0;
  bool no_direct = false;
  std::string exchange;  ///< "fp32", "bf16", or empty: as the model's config says
  std::string model;
  std::vector<std::string> settings;
  double step_ms = 0.0, parameters_millions = 0.0;
  std::vector<double> bucket_mb;
  bool all = false, json = false;
};

/// `starling-topo plan`: what each topology and bucket size would cost on a network that was measured or is given.
CLI::App* add_plan(CLI::App& app, PlanOptions& options);
void plan(const PlanOptions& options);

}  // namespace starling
