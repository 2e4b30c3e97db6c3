#pragma once

// For authors of schedules of the learning rate.

#include "apps/training/schedules/schedule.h"
#include "core/config.h"
#include "core/error.h"
#include "core/registry.h"
