#include "core/error.h"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

using namespace starling;

namespace {

template <class Call>
Error caught(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error was thrown");
  return Error(ExitCode::kOk, {});
}

}  // namespace

TEST_CASE("core/error: what, where and remedy are fields, and the text is made of them") {
  const Error error = caught([] {
    fail(ExitCode::kUsage, "config",
         {.file = "run.json", .key = "sync.lr", .rank = 2, .step = 7, .bucket = 1},
         "{} is {}; use {}", "it", 3, 4);
  });
  CHECK(error.code() == ExitCode::kUsage);
  CHECK(error.parts().component == "config");
  CHECK(error.parts().what == "it is 3");
  CHECK(error.parts().remedy == "use 4");
  CHECK(error.parts().where.file == "run.json");
  CHECK(error.parts().where.key == "sync.lr");
  CHECK(error.parts().where.rank == 2);
  CHECK(error.parts().where.step == 7);
  CHECK(error.parts().where.bucket == 1);
  CHECK(std::string(error.what()) == "[config] run.json: sync.lr: it is 3; use 4");
  CHECK(error.message() == "run.json: sync.lr: it is 3; use 4");
  CHECK(message_of(error) == error.message());
  CHECK(message_of(std::runtime_error("[x] y")) == "[x] y");
  CHECK(std::is_nothrow_copy_constructible_v<Error>);
}

TEST_CASE(
    "core/error: the format's own last break stands before the remedy, whatever the values hold") {
  const auto parts = [](const auto& call) { return caught(call).parts(); };
  ErrorParts found = parts([] { fail(ExitCode::kUsage, "x", "a {}", "b; c"); });
  CHECK(found.what == "a b; c");
  CHECK(found.remedy.empty());
  found = parts([] { fail(ExitCode::kUsage, "x", "one; two {}; three {}", "b; c", "d; e"); });
  CHECK(found.what == "one; two b; c");
  CHECK(found.remedy == "three d; e");
  found = parts([] { require(false, "x", "{}{}", "a", "; b"); });
  CHECK(found.what == "a; b");
  CHECK(caught([] { require(false, "x", "no; yes"); }).code() == ExitCode::kInternal);
  require(true, "x", "nothing");
}

TEST_CASE("core/error: who passes an error on puts its own name in front, and keeps the rest") {
  const Error inner(ExitCode::kMemory,
                    {"memory", "8 bytes are missing", "use fewer", {.file = "f", .step = 3}});
  const Error outer = told_by("layer", "conv1", inner);
  CHECK(outer.code() == ExitCode::kMemory);
  CHECK(std::string(outer.what()) == "[layer] conv1: [memory] f: 8 bytes are missing; use fewer");
  CHECK(outer.parts().remedy == "use fewer");
  CHECK(outer.parts().where.step == 3);
  CHECK(outer.parts().where.key == "conv1");
}
