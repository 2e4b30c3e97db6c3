#pragma once

// Trained models in programs of one's own: no trainer, no MPI. Link starling::inference.

#include "apps/inference/inference.h"
