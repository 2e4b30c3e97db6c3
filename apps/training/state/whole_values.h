#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "comm/bucket.h"
#include "comm/replica.h"
#include "core/backend.h"

namespace starling {

/// Gives the parameters of divided buckets whole values in host memory, for as long as it lives, so
/// that a model is read tensor by tensor. The buckets must outlive it.
class WholeValues {
 public:
  /// Uninitialised values, of vectors too.
  explicit WholeValues(const std::vector<Bucket>& buckets);
  /// Those of `parameters`, one tensor per bucket with its parts, for matrices; on ranks that are
  /// not to `read` them values stay empty. All ranks of the replica call this.
  WholeValues(const std::vector<Bucket>& buckets, Replica* replica,
              const std::vector<Tensor>& parameters, bool read);
  ~WholeValues();
  WholeValues(const WholeValues&) = delete;
  WholeValues& operator=(const WholeValues&) = delete;

  /// The bucket's numbers; its parameters where it is not divided.
  Tensor of(std::size_t bucket) const {
    return values_[bucket] ? values_[bucket] : buckets_[bucket].parameters;
  }
  /// Copies this rank's part of them to its parameters.
  void keep() const;

 private:
  void give(std::size_t bucket, const Tensor& values, bool vectors);

  const std::vector<Bucket>& buckets_;
  std::unique_ptr<Backend> host_;
  std::vector<Tensor> values_;                         ///< by bucket; empty: not divided
  std::vector<std::pair<Parameter*, Tensor>> before_;  ///< to restore
};

}  // namespace starling
