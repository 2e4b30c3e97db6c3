#pragma once

// For authors of tasks, losses and metrics. functions.h has the arithmetic with gradients.

#include "apps/training/tasks/loss.h"
#include "apps/training/tasks/metric.h"
#include "apps/training/tasks/task.h"
#include "core/config.h"
#include "core/error.h"
#include "core/operations/all.h"
#include "core/registry.h"
