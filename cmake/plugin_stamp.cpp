// Compiled into every plug-in: see the header.
#include "apps/inference/plugin_stamp.h"

extern "C" {
extern const char starling_plugin_stamp[];
[[gnu::used]] const char starling_plugin_stamp[] = STARLING_STAMP;
}
