#pragma once

// For authors of transports: `TransportPlan`, `Transport` and its mixers, `ForwardingTransport` for
// those on top of another one, and `transports()` to add to.

#include "comm/mixer.h"
#include "comm/transport.h"
#include "comm/transports/forwarding.h"
#include "comm/transports/plan.h"
#include "core/config.h"
#include "core/error.h"
#include "core/operations/all.h"
#include "core/registry.h"
