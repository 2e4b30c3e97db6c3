#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <vector>

#include "comm/engine/window.h"

using namespace starling;

namespace {

/// A link that carries one piece after the other in `each` seconds, after a handshake of
/// `round_trip`.
struct Link {
  double each, round_trip, now = 0.0, free = 0.0;
  PieceWindow window;

  /// Sends so many pieces; the first window of them waits for a peer that comes `late` seconds
  /// after. Returns the seconds that it took.
  double send(int pieces, double late = 0.0) {
    struct Piece {
      double left, there;
      bool tells;
    };
    std::queue<Piece> under_way;
    const double begin = now;
    for (int sent = 0, there = 0; there < pieces;) {
      while (sent < pieces && window.open()) {
        free = std::max(free, std::max(now, begin + late) + round_trip) + each;
        under_way.push({now, free, window.sent()});
        ++sent;
      }
      const Piece piece = under_way.front();
      under_way.pop();
      now = piece.there;
      window.arrived(piece.there - piece.left, piece.tells);
      ++there;
    }
    return now - begin;
  }
};

}  // namespace

TEST_CASE(
    "comm/window: as many pieces go at once as fill a long link, and no more wait than a few") {
  for (const double needed : {1.0, 4.0, 9.0, 12.0}) {  // round trips in pieces
    Link link{0.01, 0.01 * needed};
    (void)link.send(200);
    CAPTURE(needed);
    CHECK(link.send(100) <= 0.01 * (needed + 100.0) * 1.05);
    CHECK(link.window.limit() >= needed);
    CHECK(link.window.limit() <= std::max(3.0, needed + 6.0));
  }
  for (const double needed : {30.0, 60.0, 100.0}) {
    Link link{0.001, 0.001 * needed};
    (void)link.send(160);
    CAPTURE(needed);
    CHECK(link.send(160) <= 0.001 * (needed + 160.0) * 1.05);
    CHECK(link.window.limit() <= 2.0 * needed);
  }
}

TEST_CASE(
    "comm/window: what a long link needs above the most is not tried, and a short link has the "
    "fewest") {
  Link longest{0.0001, 0.1};
  (void)longest.send(3000);
  CHECK(longest.window.limit() == kMostPieces);
  Link near{0.002, 0.0001};
  (void)near.send(500);
  CHECK(near.window.limit() == kFewestPieces);
  Link nearest{0.0001, 0.0002};  // 20 Gbit/s
  (void)nearest.send(500);
  CHECK(nearest.window.limit() == kFewestPieces);
}

TEST_CASE(
    "comm/window: a link that became slower gets fewer pieces, and a peer that is always late as "
    "many as before") {
  Link link{0.01, 0.09};
  (void)link.send(200);
  const int before = link.window.limit();
  for (int step = 0; step < 50; ++step) (void)link.send(60, 0.5);
  CHECK(link.window.limit() >= before - 1);
  link.each = 0.05;
  (void)link.send(400);
  CHECK(link.window.limit() < before - 3);
}

TEST_CASE("comm/window: a small piece tells nothing") {
  PieceWindow window;
  for (int i = 0; i < 20; ++i)
    window.arrived(std::numeric_limits<double>::infinity(), window.sent());
  Link link{0.01, 0.09};
  link.window = window;
  (void)link.send(200);
  CHECK(link.window.limit() > kFewestPieces);
}
