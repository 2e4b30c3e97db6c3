#pragma once

#include <memory>

#include "comm/mixer.h"

namespace starling {

/// Exchanges whose numbers travel as bf16. With C(x) the rounded copy of x, a rank's row of the
/// mixing matrix becomes
///     c_i = x_i + Σ_j w_j (C(x_j) - C(x_i)),
/// so both sides of a pair add and subtract the same decoded numbers and the mean over ranks stays
/// what it was, to rounding. A rank's own parameters keep their precision. A group's sum is that of
/// the members' decoded numbers, made in the parameters' own type in rank order. The transport
/// carries all of it, also between ranks of one host: the same bits wherever the ranks are. In a
/// round over nodes (kNodes) only the means that nodes exchange are rounded, by the same rule
/// (comm/transports/node_mix.h); inside a node numbers keep their precision.
MixerKind bf16_mixer();

}  // namespace starling
