#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "apps/training/output/output_file.h"

namespace starling {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `bytes`; "123456789" gives 0xE3069283.
std::uint32_t crc32c(std::string_view bytes);

/// A record of a TFRecord file: length, its masked CRC, payload, its masked CRC (little endian).
std::string tfrecord(std::string_view payload);

/// A file of scalars for TensorBoard, events.out.tfevents.TIME.HOST.PID: TFRecords of the protocol
/// buffer message Event (github.com/tensorflow/tensorboard, tensorboard/compat/proto/event.proto).
class EventFile {
 public:
  /// Starts a new file in `folder`. TensorBoard then drops what older files of the folder hold from
  /// `first_step` on. It reads files in the order of their names, TIME first, so this one's TIME
  /// and all its moments are after every moment of those, also where the clock has been set back.
  EventFile(const std::string& folder, std::int64_t first_step);
  /// Adds a scalar to the batch that flush() writes.
  void scalar(std::string_view tag, std::int64_t step, double value);
  void flush();

 private:
  /// A record of an event, of now, but of no moment before the last one.
  std::string event(std::int64_t step, std::uint32_t field, std::string_view value);

  double last_;  ///< the last moment, in seconds
  OutputFile file_;
  std::string pending_;
};

}  // namespace starling
