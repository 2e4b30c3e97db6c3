#include "apps/inference/version.h"

#include "starling_build.h"  // made by the build

namespace starling {

std::string version_text() { return STARLING_VERSION; }
std::string commit_text() { return STARLING_COMMIT; }

}  // namespace starling
