#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starling {

// The files that this process has mapped, by address. If a mapped file is truncated, accesses
// beyond its end raise SIGBUS, and the signal handler only knows the address.

/// A position in a mapped file.
struct MappedPlace {
  std::string_view path;
  std::uint64_t offset = 0, bytes = 0;  ///< of the byte, and of the file when it was mapped
};

/// Registers a mapping. Thread-safe.
void note_mapping(const void* begin, std::size_t bytes, const std::string& path);
/// Unregisters a mapping; to be called before unmapping.
void forget_mapping(const void* begin);
/// Returns false if the address is in no registered mapping. Lock-free, safe in a signal handler.
bool find_mapping(const void* address, MappedPlace& place) noexcept;

}  // namespace starling
