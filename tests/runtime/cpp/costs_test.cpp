// What a round is said to cost: where its seconds are counted, and what the length controller learns of them.

#include <chrono>
#include <thread>

#include "../../../runtime/cpp/core/engine/session.h"
#include "check.h"
#include "tests.h"

namespace {

using specc::Session;

constexpr int64_t kPrompt[] = {0, 8, 7, 8, 0, 5, 1, 10, 10, 1, 5, 0};

void append(Session& session, size_t length_index) {
  session.options().length_index = length_index;
  CHECK(session.append(kPrompt, 12));
}

void play(Session& session, int tokens) {
  int64_t token = 0;
  for (int i = 0; i < tokens; ++i) CHECK(session.next(&token) == specc::Step::kToken);
}

// Each second belongs to prefill or to decoding, never to both; and to decoding where the prompt is not the reason.
void seconds_are_counted_once(const std::string& folder) {
  for (const std::string kind : {"model", "pairs"}) {
    Session session(specc::Artifact::load(specc::Source::folder(folder + "/" + kind), 1));
    append(session, 0);
    const auto play_one = [&] {
      const double before = session.stats().prefill_s + session.stats().decode_s;
      const specc::Stopwatch watch;
      play(session, 1);
      CHECK_NOTE(session.stats().prefill_s + session.stats().decode_s - before <= watch.seconds(), kind);
    };
    play_one();
    play(session, 20);
    const double prefill_s = session.stats().prefill_s;
    session.options().length_index = 3;
    play_one();  // catches up first
    CHECK_EQ(session.stats().prefill_s, prefill_s);
    CHECK_EQ(session.stats().prefill_tokens, 11u);

    append(session, 3);
    play_one();  // drafters that are extended are brought up to the prompt here
  }
}

void sessions_share_what_rounds_cost(const std::string& folder) {
  const auto artifact = specc::Artifact::load(specc::Source::folder(folder + "/model"), 1);
  CHECK_EQ(artifact->round_costs().seconds(2), 0.0);
  Session session(artifact);
  append(session, 2);
  play(session, 20);
  CHECK(artifact->round_costs().seconds(2) > 0);
  CHECK_EQ(artifact->round_costs().seconds(3), 0.0);
}

constexpr double kLong = 0.05;  // seconds, far beyond any round here

// What a length costs is its round and its drafts, however long others kept the library busy.
void waiting_is_no_cost(const std::string& folder) {
  const auto artifact = specc::Artifact::load(specc::Source::folder(folder + "/model"), 1);
  Session session(artifact);
  append(session, 2);
  play(session, 1);
  for (int i = 0; i < 4; ++i) {
    std::thread waiting;
    {
      const specc::Turn turn(artifact->library().turn());
      waiting = std::thread([&] { play(session, 3); });
      std::this_thread::sleep_for(std::chrono::duration<double>(kLong));
    }
    waiting.join();
  }
  CHECK(session.stats().decode_s > kLong);
  CHECK(session.stats().round_s < 2 * kLong);
  CHECK(session.stats().lengths[2].seconds < 2 * kLong);
}

void drafting_on_the_host_is_a_cost(const std::string& folder) {
  const auto artifact = specc::Artifact::load(specc::Source::folder(folder + "/ngram"), 1);
  Session session(artifact);
  size_t found = 2;
  const auto slow = [](void* user, const int64_t*, size_t, size_t, int64_t* draft) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kLong));
    draft[0] = draft[1] = 1;
    return *static_cast<size_t*>(user);
  };
  session.set_drafter(slow, &found);
  append(session, 2);
  while (session.stats().drafts < 2) play(session, 1);
  found = 0;
  while (session.stats().rounds < 5) play(session, 1);
  CHECK(artifact->given_costs().seconds(2) >= kLong);
  CHECK(artifact->round_costs().seconds(2) < kLong);   // of a drafter that is not the artifact's own
  CHECK(artifact->given_costs().seconds(0) < kLong);  // what was looked for in vain is not held against K = 0
}

}  // namespace

void costs_test(const std::string& folder) {
  seconds_are_counted_once(folder);
  sessions_share_what_rounds_cost(folder);
  waiting_is_no_cost(folder);
  drafting_on_the_host_is_a_cost(folder);
}
