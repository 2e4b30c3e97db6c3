#include "comm/agreement.h"

#include <doctest/doctest.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "tests/fakes/transport/fake_transport.h"

using namespace starling;

TEST_CASE(
    "comm/agreement: every rank gets the error of the lowest rank that failed, with all its "
    "parts") {
  FakeWorld world(3);
  world.run([](Transport& t) {
    CHECK_FALSE(try_on_all_ranks(t, [] {}).has_value());
    const auto error = try_on_all_ranks(t, [&] {
      if (t.rank() == 0) return;
      fail(ExitCode::kOutput, "output",
           {.file = "a b; c", .key = "k:", .rank = 7, .step = 12 + t.rank(), .bucket = 3},
           "no {}: 9 x\n; do {}", "room", t.rank());
    });
    REQUIRE(error.has_value());
    CHECK(error->code() == ExitCode::kOutput);
    CHECK(error->rank() == 1);
    CHECK(error->parts().component == "output");
    CHECK(error->parts().what == "no room: 9 x\n");
    CHECK(error->parts().remedy == "do 1");
    CHECK(error->parts().where.file == "a b; c");
    CHECK(error->parts().where.key == "k:");
    CHECK(error->parts().where.step == 13);
    CHECK(error->parts().where.bucket == 3);
    // on one line
    CHECK(std::string(error->what()) == "[output] a b; c: k:: no room: 9 x\\n; do 1");
  });
}

TEST_CASE("comm/agreement: what is no Error has an exit code, too") {
  FakeWorld world(2);
  world.run([](Transport& t) {
    CHECK_THROWS_WITH_AS(on_all_ranks(t,
                                      [&] {
                                        if (t.rank() == 1) throw std::runtime_error("odd");
                                      }),
                         "[internal] odd", AgreedError);
    const auto memory = try_on_all_ranks(t, [] { throw std::bad_alloc(); });
    REQUIRE(memory.has_value());
    CHECK(memory->code() == ExitCode::kMemory);
    CHECK(memory->rank() == 0);
    CHECK(memory->parts().remedy == "use a smaller batch_size or fewer ranks");
  });
}

TEST_CASE("comm/agreement: reasons and texts that differ are those of the lowest rank") {
  FakeWorld world(4);
  world.run([](Transport& t) {
    CHECK_FALSE(lowest_reason(t, "").has_value());
    const auto reason =
        lowest_reason(t, t.rank() >= 2 ? "because " + std::to_string(t.rank()) : "");
    REQUIRE(reason.has_value());
    CHECK(reason->text() == "rank 2: because 2");
    CHECK_FALSE(find_disagreement(t, "same").has_value());
    const auto found = find_disagreement(t, t.rank() == 0 || t.rank() == 1 ? "one" : "two");
    REQUIRE(found.has_value());
    CHECK(found->rank == 2);
    CHECK(found->first == "one");
    CHECK(found->other == "two");
  });
}
