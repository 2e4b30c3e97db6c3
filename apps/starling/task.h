#pragma once

// For authors of tasks, losses and metrics. functions.h has the arithmetic with gradients.

#include "apps/trainer/tasks/loss.h"
#include "apps/trainer/tasks/metric.h"
#include "apps/trainer/tasks/task.h"
#include "core/config.h"
#include "core/error.h"
#include "core/registry.h"
