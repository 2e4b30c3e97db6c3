#include "core/operations/indexing.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

namespace {

/// `rows` holds one of the table's for each token.
void check_rows(const Checker& call, const Tensor& tokens, std::int64_t columns, const Tensor& rows,
                const char* name, DType dtype) {
  call.there(tokens, "tokens");
  call.has(tokens, "tokens", tokens.elements(), DType::kInt32);
  call.has(rows, name, tokens.elements() * columns, dtype);
}

}  // namespace

void check(const EmbeddingForward& args) {
  const Checker call("embedding_forward");
  const auto table = call.matrix(args.table, "table");
  check_rows(call, args.tokens, table.columns, args.y, "y", args.table.dtype());
}

void check(const EmbeddingBackward& args) {
  const Checker call("embedding_backward");
  const auto table = call.matrix(args.dtable, "dtable");
  call.there(args.dy, "dy");
  check_rows(call, args.tokens, table.columns, args.dy, "dy", args.dy.dtype());
  call.has(args.dtable, "dtable", table.elements(), wide_of(args.dy.dtype()));
}

}  // namespace starling
