#pragma once

namespace starling {

/// The whole of starling-train: arguments to exit status.
int train_main(int argc, char** argv);

}  // namespace starling
