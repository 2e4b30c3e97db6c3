#if __has_include(<zmq.h>)
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/membership.h"
#include "comm/zeromq/transport.h"
#include "core/error.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

// Ranks that join a job and are lost from it. They are threads: one is lost when what it has is
// destroyed, which closes its connections as the end of its process does.
namespace starling::test {
namespace {

const std::map<std::string, std::string> kJobIdentity = {{"config", "abc"}, {"version", "1.0"}};

constexpr double kLimit = 60.0;  // seconds: no wait comes to it, on a busy machine either

/// A rank's end of a job.
struct JobRank {
  std::shared_ptr<Membership> membership;
  std::unique_ptr<Transport> transport;

  /// As after the loss of a rank: its connections are closed without a goodbye.
  void drop() {
    try {
      const std::unique_ptr<Transport> dropped = std::move(transport);
      throw 0;
    } catch (int) {
    }
  }
  void regroup(double timeout_seconds = kLimit) {
    transport.reset();
    transport = membership->regroup(timeout_seconds);
  }
  /// Regroups until it has worked; only joiners that are lost make it fail.
  void regroup_after_loss() {
    drop();
    std::string error;
    for (int i = 0; i < 3 && !transport; ++i)
      error = error_text(ExitCode::kLost, [&] { regroup(); });
    CHECK(error == "");
  }
  /// 1 + 2 + … + n, where all n ranks call it.
  double sum() const {
    double sum = transport->rank() + 1;
    transport->world().sum(&sum, 1);
    return sum;
  }
};

struct OpenJob {
  Folder folder;
  std::string roster;
  std::atomic<bool> there{false};  ///< `roster` and the secret are
  int replica = 1;
  ZeroMqSettings settings{.identity = kJobIdentity};

  /// Runs `ranks` threads that are a job, and `other`, once it can join.
  void run(int ranks, const std::function<void(JobRank&)>& body, const std::function<void()>& other,
           bool lets_join = true) {
    FakeWorld world(ranks);
    std::thread joiner([&] {
      while (!there) std::this_thread::yield();
      other();
    });
    world.run([&](Transport& fake) {
      JobRank own;
      own.transport = make_zeromq_transport(
          world.transport(fake.rank()),
          {.lets_join = lets_join, .replica = replica, .identity = kJobIdentity}, kLimit,
          &own.membership);
      own.membership->set_identity(kJobIdentity);
      if (own.membership->rank() == 0) {
        settings.secret = folder.write("secret", own.membership->secret());
        ::chmod(settings.secret.c_str(), 0600);
        roster = own.membership->roster();
        there = true;
      }
      body(own);
    });
    joiner.join();
  }
  JobRank join(double timeout_seconds = kLimit) const {
    return {join_zeromq_job(roster, settings, timeout_seconds), nullptr};
  }
  /// Waits until a process has asked rank 0, which lets it in.
  static void admit(JobRank& own) {
    while (own.membership->rank() == 0 && !own.membership->asked())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    own.transport->world().barrier();
    if (own.membership->rank() == 0) own.membership->let_in();
  }
};

}  // namespace

TEST_CASE("comm/membership: ranks join one after the other, the last ones") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    OpenJob job;
    const int most = ranks + 2;
    const auto go_on = [&](JobRank& own) {
      while (own.transport->size() < most) {
        OpenJob::admit(own);
        own.regroup();
        CHECK(own.membership->rank() == own.transport->rank());
        CHECK(own.sum() == own.transport->size() * (own.transport->size() + 1) / 2);
      }
    };
    job.run(ranks, go_on, [&] {
      std::array<std::thread, 2> two;
      for (std::thread& one : two) {
        one = std::thread([&] {
          JobRank own = job.join();
          own.regroup();
          CHECK(own.transport->rank() == own.transport->size() - 1);
          CHECK(own.sum() == own.transport->size() * (own.transport->size() + 1) / 2);
          go_on(own);
        });
      }
      for (std::thread& one : two) one.join();
    });
  }
}

TEST_CASE(
    "comm/membership: the others go on without a lost rank, and one that joins at that time") {
  for (const int lost : {0, 2}) {
    for (const bool joins : {false, true}) {
      CAPTURE(lost);
      CAPTURE(joins);
      OpenJob job;
      job.run(
          3,
          [&](JobRank& own) {
            const int rank = own.transport->rank();
            if (joins) OpenJob::admit(own);
            if (rank == lost) return own.drop();
            // It notices by itself, or by the other one that has noticed first.
            const std::string error =
                error_text(ExitCode::kLost, [&] { own.transport->world().barrier(); });
            if (!joins && error.find("goes on without one that it has lost") == std::string::npos)
              CHECK(contains(error, fmt::format("rank {} is lost", lost)));
            own.regroup_after_loss();
            // Who has asked rank 0 is lost with it.
            CHECK(own.transport->size() == (joins && lost != 0 ? 3 : 2));
            CHECK(own.transport->rank() == rank - (lost < rank ? 1 : 0));
            CHECK(own.sum() == (joins && lost != 0 ? 6 : 3));
          },
          [&] {
            if (!joins) return;
            if (lost == 0) {
              CHECK(!error_text([&] { job.join(3.0); }).empty());
              return;
            }
            JobRank own = job.join();
            own.regroup();
            CHECK(own.sum() == 6);
          });
    }
  }
}

TEST_CASE("comm/membership: a replica that loses a rank leaves, and one joins as a whole") {
  for (const int lost : {1, 2}) {
    CAPTURE(lost);
    OpenJob job;
    job.replica = 2;
    job.run(
        4,
        [&](JobRank& own) {
          const int rank = own.transport->rank(), replica = lost / 2;
          own.transport->world().barrier();
          if (rank / 2 == replica) {
            own.drop();
            if (rank == lost) return;
            CHECK(error_of(ExitCode::kLost, [&] { own.regroup(); }) ==
                  fmt::format("[zeromq] rank {} is lost, and its replica, ranks {} to {}, leaves "
                              "with it; the others go on",
                              lost, 2 * replica, 2 * replica + 1));
            CHECK(own.membership->over());
            return;
          }
          own.regroup_after_loss();
          CHECK(own.transport->size() == 2);
          CHECK(own.transport->rank() == rank - (replica == 0 ? 2 : 0));
          CHECK(own.sum() == 3);
          if (replica == 0) return;  // joiners would know of the first rank alone
          OpenJob::admit(own);
          own.regroup();
          CHECK(own.sum() == 10);
        },
        [&] {
          std::array<std::thread, 2> two;
          for (std::thread& one : two) {
            one = std::thread([&] {
              if (lost < 2) return;
              JobRank own = job.join();
              own.regroup();
              CHECK(own.transport->size() == 4);
              CHECK(own.transport->rank() >= 2);
              CHECK(own.sum() == 10);
            });
          }
          for (std::thread& one : two) one.join();
        });
  }
}

TEST_CASE(
    "comm/membership: who waits fetches a state while the ranks go on, and one in its place") {
  const auto state = [](std::size_t bytes, unsigned seed) {
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(seed = seed * 1664525u + 1013904223u);
    return text;
  };
  const std::array<std::string, 2> states{state(3'000'001, 1), state(20'000'000, 2)};
  OpenJob job;
  job.run(
      2,
      [&](JobRank& own) {
        const bool first = own.transport->rank() == 0;
        const auto go_on_until = [&](const std::function<bool()>& done) {
          for (double ends = 0.0; ends == 0.0;) {
            ends = first && done() ? 1.0 : 0.0;
            own.transport->world().max(&ends, 1);
          }
        };
        go_on_until([&] { return own.membership->asked(); });
        for (const std::string& text : states) {
          if (first) {
            CHECK(own.membership->fetched() == (text == states[1]));  // the one before
            own.membership->offer(
                {text.size(), [&](std::uint64_t offset, std::byte* to, std::size_t count) {
                   std::memcpy(to, text.data() + offset, count);
                 }});
          }
          go_on_until([&] { return own.membership->fetched(); });
        }
        OpenJob::admit(own);
        own.regroup();
        CHECK(own.sum() == 6);
      },
      [&] {
        std::string come;
        JobRank own{
            join_zeromq_job(job.roster, job.settings, kLimit,
                            [&](std::uint64_t bytes, std::uint64_t offset, std::string_view piece) {
                              if (offset == 0) come.clear();
                              CHECK(offset == come.size());
                              CHECK((bytes == states[0].size() || bytes == states[1].size()));
                              come += piece;
                            }),
            nullptr};
        CHECK(come == states[1]);
        own.regroup();
        CHECK(own.sum() == 6);
      });
}

TEST_CASE("comm/membership: a joiner that is lost half-way is left out") {
  OpenJob job;
  job.run(
      2,
      [&](JobRank& own) {
        OpenJob::admit(own);
        own.transport.reset();
        // It is in the list of ranks, and gone: whoever notices has all meet once more.
        for (int i = 0; i < 3 && !own.transport; ++i)
          error_text(ExitCode::kLost, [&] {
            own.transport = own.membership->regroup(kLimit);
            if (own.transport->size() > 2) own.sum();
          });
        if (own.transport->size() > 2) own.regroup_after_loss();
        CHECK(own.transport->size() == 2);
        CHECK(own.sum() == 3);
      },
      [&] { job.join(); });
}

TEST_CASE("comm/membership: the smaller part of the ranks does not go on") {
  OpenJob job;
  job.run(
      3,
      [&](JobRank& own) {
        own.transport->world().barrier();
        if (own.transport->rank() != 1) return own.drop();
        own.drop();
        const std::string text = error_of(ExitCode::kLost, [&] { own.regroup(); });
        CHECK(contains(text, "only 1 of 3 ranks are left"));
        CHECK(own.membership->over());
      },
      [] {});
}

TEST_CASE("comm/membership: who cannot join is told why, and the ranks go on") {
  const auto refused = [](bool lets_join, const std::function<void(OpenJob&)>& change,
                          ExitCode code = ExitCode::kUsage) {
    OpenJob job;
    std::string text;
    std::atomic<bool> over{false};
    job.run(
        2,
        [&](JobRank& own) {
          double ends = 0.0;
          while (ends == 0.0) {
            ends = over ? 1.0 : 0.0;
            own.transport->world().max(&ends, 1);
          }
          CHECK(!own.membership->asked());
        },
        [&] {
          change(job);
          text = error_of(code, [&] { job.join(); });
          over = true;
        },
        lets_join);
    return text;
  };
  const auto identity = [&](const char* key, const char* value) {
    return refused(true, [=](OpenJob& job) { job.settings.identity[key] = value; });
  };
  CHECK(contains(identity("config", "def"), "its config is def, this job's is abc"));
  CHECK(contains(identity("version", "2.0"), "its version is 2.0, this job's is 1.0"));
  CHECK(contains(refused(false, [](OpenJob&) {}), "this run lets nobody join"));
  CHECK(contains(refused(true,
                         [](OpenJob& job) {
                           job.settings.secret = job.folder.write("other", std::string(64, '1'));
                           ::chmod(job.settings.secret.c_str(), 0600);
                         }),
                 "does not accept this secret"));
  const auto with = [&](const char* before, const char* after) {
    return refused(true, [=](OpenJob& job) {
      job.roster.replace(job.roster.find(before), std::string(before).size(), after);
    });
  };
  CHECK(contains(with("\"job\":\"", "\"job\":\"0"), "it is a rank of another job"));
  CHECK(contains(with("\"protocol\":3", "\"protocol\":1"), "version 1 of the protocol, not 3"));
  CHECK(contains(with("\"members\"", "\"others\""), "without job, generation and members"));
  CHECK(contains(refused(
                     true,
                     [](OpenJob& job) {
                       const std::size_t at = job.roster.find("tcp://127.0.0.1:") + 16;
                       job.roster.replace(at, job.roster.find('"', at) - at, "1");
                     },
                     ExitCode::kLost),
                 "is not there: the run has ended"));
}

}  // namespace starling::test
#endif
