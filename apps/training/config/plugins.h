#pragma once

namespace starling {

/// Fills every registry with what the project brings along. Safe to call again.
void register_builtins();

}  // namespace starling
