#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/topo/command.h"

namespace starling {

struct ShowOptions {
  TopologyChoice choice;
  bool json = false;
  std::string svg;
};

/// `starling-topo show`: a topology's rounds and figures as text, JSON or a picture.
CLI::App* add_show(CLI::App& app, ShowOptions& options);
void show(const ShowOptions& options);

}  // namespace starling
