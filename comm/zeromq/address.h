#pragma once

#include <string>

namespace starling::detail {

/// The IPv4 address of the interface of this name or, if it is empty, of the first one that other
/// hosts may reach. Error(kUsage) with the interfaces that there are.
std::string address_of(const std::string& interface);

}  // namespace starling::detail
