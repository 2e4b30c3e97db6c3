#pragma once

#include "core/operations/accesses.h"
#include "core/operations/codecs.h"
#include "core/operations/convolutions.h"
#include "core/operations/indexing.h"
#include "core/operations/list.h"
#include "core/operations/losses.h"
#include "core/operations/norms.h"
#include "core/operations/pictures.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/updates.h"
