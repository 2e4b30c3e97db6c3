// doctest under mpirun: every rank runs every test case, in the same order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "world.h"

namespace starling::test {
namespace {
MpiSession* the_session = nullptr;
}
MpiSession& session() { return *the_session; }
}  // namespace starling::test

int main(int argc, char** argv) {
  starling::MpiSession session;
  starling::test::the_session = &session;
  doctest::Context context(argc, argv);
  const int result = context.run();
  if (result != 0) session.abort(starling::ExitCode::kInternal, "");
  return result;
}
