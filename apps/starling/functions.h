#pragma once

// Functions with gradients, `starling::functions`, of which layers, losses and tasks are written.

#include "layers/functions.h"
