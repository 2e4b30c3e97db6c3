#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/training/output/arguments.h"
#include "topology/check.h"
#include "topology/simulation.h"
#include "topology/topology.h"

// starling-topo's subcommands, a source file each, and what they share.
namespace starling {

/// The arguments with which a subcommand names a topology: TYPE -n N [--ranks-per-node L] [--set
/// KEY=VALUE]...
struct TopologyChoice {
  std::string type;
  int ranks = 0;
  int ranks_per_node = 1;
  std::vector<std::string> settings;
};
void add_topology_options(CLI::App& command, TopologyChoice& choice);

struct ChosenTopology {
  std::unique_ptr<Topology> topology;
  TopologyReport report;
  std::string name;
};
/// Makes and checks it.
ChosenTopology choose_topology(const TopologyChoice& choice);

/// Writes all of `text`; Error(kOutput) names `name` if that fails.
void write_all(std::FILE* file, const std::string& text, const std::string& name);
inline void write_standard_output(const std::string& text) {
  write_all(stdout, text, "standard output");
}

struct ShowOptions {
  TopologyChoice choice;
  bool json = false;
  std::string svg;
  std::string algorithm;          ///< a type, or `sync.algorithm` as JSON; empty: none
  double momentum = 0.9;          ///< of the `sgd` that the algorithm's figure is for
  std::string exchange = "fp32";  ///< `sync.exchange`
};

/// `starling-topo show`: a topology's rounds and figures as text, JSON or a picture.
CLI::App* add_show(CLI::App& app, ShowOptions& options);
void show(const ShowOptions& options);

struct SimulateOptions {
  TopologyChoice choice;
  SimulationOptions simulation;
  std::int64_t rounds = 32;
  bool json = false;
};

/// `starling-topo simulate`: gossip on quadratics, all ranks in one process.
CLI::App* add_simulate(CLI::App& app, SimulateOptions& options);
void simulate(const SimulateOptions& options);

struct MeasureOptions {
  double seconds = 4.0;
  double timeout = 60.0;
  int threads = 0;  ///< 0: an equal share of the host's cores
  std::string output;
};

/// `starling-topo measure`, under mpirun: latency and bandwidth inside a host, between hosts, and
/// of memory, on the real ranks.
CLI::App* add_measure(CLI::App& app, MeasureOptions& options);
/// Returns the exit status; every rank calls it.
int measure(const MeasureOptions& options);

struct PlanOptions {
  int ranks = 0, ranks_per_node = 1, replica = 1;
  std::string measured;
  double bandwidth_gbits = 0.0, latency_us = 0.0;       ///< between hosts
  double inside_gbytes = 0.0, inside_latency_us = 0.0;  ///< inside a host, by messages
  double memory_gbytes = 0.0, update_gflops = 0.0;
  bool no_direct = false;
  std::string exchange;  ///< "fp32", "bf16", or empty: as the model's config says
  std::string model;
  std::vector<std::string> settings;
  double step_ms = 0.0, parameters_millions = 0.0;
  std::vector<double> bucket_mb;
  bool all = false, json = false;
};

/// `starling-topo plan`: what each topology and bucket size would cost on a network that was
/// measured or is given.
CLI::App* add_plan(CLI::App& app, PlanOptions& options);
void plan(const PlanOptions& options);

}  // namespace starling
