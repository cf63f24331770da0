// The engine over a model without arithmetic (testing/fake_model.h). What it must answer is computed by asking the
// sampler for one token after the other, without blocks, batches or chunks.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <deque>
#include <thread>

#include "base/testing/random_numbers.h"
#include "engine/generate.h"
#include "engine/sampler.h"
#include "engine/testing/fake_model.h"
#include "engine/testing/recorder.h"

namespace sixfold {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<Engine> StartFake(const FakeModelOptions& model, const EngineOptions& options = {}) {
  auto engine = Engine::StartWith(MakeFakeModel(model), options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// K/V memory of so many blocks of the fake model: 16 positions of one fp32 K and V.
int64_t BytesOfBlocks(int64_t blocks) { return blocks * kPageTokens * 2 * 4; }

std::vector<TokenId> RandomTokens(RandomNumbers& random, int64_t count, int64_t vocab) {
  std::vector<TokenId> out(count);
  for (TokenId& t : out) t = static_cast<TokenId>(random.Next(0, vocab - 1));
  return out;
}

struct Expected {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kLength;
};

Expected Oracle(const FakeModelOptions& model, const Request& request, int choice, int64_t context = 4096) {
  const SamplingParams& p = request.sampling;
  std::vector<TokenId> ends = p.stop_token_ids;
  std::vector<TokenId> stops = p.stop_token_ids;
  for (const TokenId t : model.eos_ids) {
    ends.push_back(t);
    if (!p.ignore_eos) stops.push_back(t);
  }
  Sampler sampler(model.vocab);
  std::vector<TokenId> tokens = request.prompt;
  const size_t prompt = tokens.size();
  Expected out;
  while (static_cast<int64_t>(out.tokens.size()) < p.max_tokens && static_cast<int64_t>(tokens.size()) < context) {
    const TokenId token = sampler
                              .Sample({.logits = FakeLogits(model, tokens),
                                       .params = p,
                                       .prompt = std::span(tokens).first(prompt),
                                       .answer = out.tokens,
                                       .end_ids = ends,
                                       .seed = *p.seed,
                                       .choice = static_cast<uint32_t>(choice)})
                              ->token;
    tokens.push_back(token);
    out.tokens.push_back(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      out.finish = FinishReason::kStop;
      break;
    }
  }
  return out;
}

std::vector<Request> RandomRequests(int count, uint64_t seed, int64_t vocab) {
  RandomNumbers random(seed);
  std::vector<Request> out;
  for (int i = 0; i < count; ++i) {
    Request r{.prompt = RandomTokens(random, random.Next(1, 90), vocab)};
    SamplingParams& p = r.sampling;
    p.temperature = random.Next(0, 3) == 0 ? 0 : static_cast<double>(random.Next(5, 20)) / 10;
    p.top_k = random.Next(0, 1) * random.Next(1, vocab);
    p.top_p = random.Next(0, 1) == 0 ? 1.0 : 0.9;
    p.repetition_penalty = random.Next(0, 1) == 0 ? 1.0 : 1.2;
    p.seed = static_cast<uint64_t>(random.Next(0, 1 << 30));
    p.n = static_cast<int>(random.Next(0, 3) == 0 ? random.Next(2, 4) : 1);
    p.max_tokens = random.Next(1, 40);
    p.min_tokens = random.Next(0, 1) * random.Next(0, p.max_tokens);
    p.ignore_eos = random.Next(0, 1) == 1;
    if (random.Next(0, 1) == 0) p.stop_token_ids = {5, 6};
    out.push_back(std::move(r));
  }
  return out;
}

// Sends all at once and compares every token with the oracle.
void ExpectOracleAnswers(Engine& engine, const FakeModelOptions& model, const std::vector<Request>& requests) {
  std::deque<Recorder> recorders;
  for (const Request& r : requests) {
    recorders.emplace_back(r.sampling.n);
    const auto id = engine.Submit(r, recorders.back().Sink());
    ASSERT_TRUE(id.ok()) << id.status().message();
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(recorders[i].Wait());
    EXPECT_EQ(recorders[i].seed(), *requests[i].sampling.seed);
    for (int c = 0; c < requests[i].sampling.n; ++c) {
      SCOPED_TRACE(testing::Message() << "request " << i << " choice " << c);
      const Expected expected = Oracle(model, requests[i], c);
      EXPECT_EQ(recorders[i].choice(c).tokens, expected.tokens);
      EXPECT_EQ(recorders[i].choice(c).finish, expected.finish);
    }
  }
  EXPECT_EQ(engine.stats().blocks_used, 0);
  EXPECT_EQ(engine.stats().running, 0);
  EXPECT_EQ(engine.stats().waiting, 0);
}

TEST(Engine, AnswersDoNotDependOnChunksOrOnTheBatch) {
  const FakeModelOptions model;
  const std::vector<Request> requests = RandomRequests(40, 1, model.vocab);
  for (const int64_t chunk : {1, 7, 64, 0}) {
    for (const auto& [rows, seqs] : {std::pair<int64_t, int>{512, 64}, {16, 5}, {1, 64}}) {
      SCOPED_TRACE(testing::Message() << "chunk " << chunk << " rows " << rows << " seqs " << seqs);
      auto engine =
          StartFake(model, {.max_num_seqs = seqs, .max_num_batched_tokens = rows, .max_prefill_chunk_tokens = chunk});
      ExpectOracleAnswers(*engine, model, requests);
    }
  }
}

TEST(Engine, PreemptionDoesNotChangeAnswers) {
  const FakeModelOptions model;
  const std::vector<Request> requests = RandomRequests(40, 2, model.vocab);
  uint64_t preemptions = 0;
  for (const int64_t blocks : {9, 12, 20}) {
    auto engine = StartFake(
        model, {.max_model_len = 130, .max_num_batched_tokens = 48, .kv_cache_memory_bytes = BytesOfBlocks(blocks)});
    EXPECT_EQ(engine->stats().blocks_total, blocks);
    ExpectOracleAnswers(*engine, model, requests);
    preemptions += engine->stats().preemptions;
  }
  EXPECT_GT(preemptions, 5u);
}

TEST(Engine, AnswersDoNotDependOnTheNumberOfReplicas) {
  const std::vector<Request> requests = RandomRequests(60, 3, 64);
  for (const int replicas : {1, 2, 4}) {
    for (const auto& [rows, seqs] : {std::pair<int64_t, int>{512, 64}, {16, 5}, {3, 64}}) {
      SCOPED_TRACE(testing::Message() << replicas << " replicas, rows " << rows << " seqs " << seqs);
      const FakeModelOptions model{.replicas = replicas};
      auto engine = StartFake(model, {.max_num_seqs = seqs, .max_num_batched_tokens = rows});
      EXPECT_EQ(engine->stats().replicas.size(), static_cast<size_t>(replicas));
      ExpectOracleAnswers(*engine, model, requests);
    }
  }
}

TEST(Engine, PreemptionOnSeveralReplicasDoesNotChangeAnswers) {
  const FakeModelOptions model{.replicas = 4};
  auto engine = StartFake(
      model, {.max_model_len = 130, .max_num_batched_tokens = 48, .kv_cache_memory_bytes = BytesOfBlocks(9)});
  EXPECT_EQ(engine->stats().blocks_total, 4 * 9);  // the memory is of each rank
  EXPECT_EQ(engine->stats().replicas[3].blocks_total, 9);
  ExpectOracleAnswers(*engine, model, RandomRequests(120, 4, model.vocab));
  EXPECT_GT(engine->stats().preemptions, 5u);
}

TEST(Engine, ChoicesOfOneRequestSpreadOverTheReplicas) {
  StepGate gate;
  const FakeModelOptions model{.replicas = 4, .eos_ids = {}, .gate = &gate};
  auto engine = StartFake(model, {.max_num_seqs = 2});
  Recorder r(10);
  Request request{.prompt = {1, 2, 3}, .sampling = {.seed = 5, .n = 10, .max_tokens = 4}};
  gate.Close();
  ASSERT_TRUE(engine->Submit(request, r.Sink()).ok());
  ASSERT_TRUE(gate.WaitUntilBlocked());
  gate.Open();
  ASSERT_TRUE(r.Wait());
  for (int c = 0; c < 10; ++c) EXPECT_EQ(r.choice(c).tokens, Oracle(model, request, c).tokens);
  // Two on each of four replicas: eight at first, then the two that waited.
  EXPECT_EQ(engine->stats().steps, 2u * 4u);
}

TEST(Engine, RequestsThatComeOverTimeAreAnsweredAsAlone) {
  const FakeModelOptions model;
  auto engine = StartFake(model, {.max_num_batched_tokens = 32});
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (const Request& r : RandomRequests(15, 10 + client, model.vocab)) {
        const auto out = Generate(*engine, r, {});
        ASSERT_TRUE(out.ok());
        for (int c = 0; c < r.sampling.n; ++c) {
          const Expected expected = Oracle(model, r, c);
          std::vector<TokenId> tokens;
          for (const SampledToken& t : out->choices[c].tokens) tokens.push_back(t.token);
          EXPECT_EQ(tokens, expected.tokens);
          EXPECT_EQ(out->choices[c].finish, expected.finish);
        }
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(engine->stats().blocks_used, 0);
}

Result<GeneratedChoice> Ask(Engine& engine, const Request& request) {
  auto out = Generate(engine, request, {});
  if (!out.ok()) return out.status();
  return std::move(out->choices[0]);
}

TEST(Engine, EndOfSequenceStopsUnlessIgnored) {
  const FakeModelOptions model{.eos_bonus = 100};
  auto engine = StartFake(model);
  Request r{.prompt = {1, 2, 3}, .sampling = {.temperature = 0, .max_tokens = 5}};
  auto answer = Ask(*engine, r);
  EXPECT_EQ(answer->finish, FinishReason::kStop);
  EXPECT_EQ(answer->stop_token, 0);
  EXPECT_EQ(answer->tokens.size(), 1u);
  r.sampling.ignore_eos = true;
  answer = Ask(*engine, r);
  EXPECT_EQ(answer->finish, FinishReason::kLength);
  EXPECT_FALSE(answer->stop_token.has_value());
  EXPECT_EQ(answer->tokens.size(), 5u);
  EXPECT_EQ(answer->tokens[4].token, 0);
  r.sampling.stop_token_ids = {0};  // a stop token stays one
  EXPECT_EQ(Ask(*engine, r)->finish, FinishReason::kStop);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.finished_stop, 2u);
  EXPECT_EQ(stats.finished_length, 1u);
  EXPECT_EQ(stats.prompt_tokens, 9u);
  EXPECT_EQ(stats.generated_tokens, 7u);
}

TEST(Engine, EndOfSequenceIdsOfTheOptionsCountToo) {
  const FakeModelOptions model{.eos_ids = {}, .eos_bonus = 100};
  auto engine = StartFake(model, {.eos_ids = {0, -7, 1 << 30}});
  const auto answer = Ask(*engine, {.prompt = {1}, .sampling = {.temperature = 0}});
  EXPECT_EQ(answer->finish, FinishReason::kStop);
}

TEST(Engine, MinTokensKeepsEndTokensAway) {
  const FakeModelOptions model{.eos_bonus = 100};
  auto engine = StartFake(model);
  Request r{.prompt = {1}, .sampling = {.temperature = 0, .max_tokens = 9, .min_tokens = 4}};
  const auto answer = Ask(*engine, r);
  ASSERT_EQ(answer->tokens.size(), 5u);
  for (int i = 0; i < 4; ++i) EXPECT_NE(answer->tokens[i].token, 0);
  EXPECT_EQ(answer->finish, FinishReason::kStop);
}

TEST(Engine, TheContextEndsAnAnswer) {
  const FakeModelOptions model{.eos_ids = {}};
  auto engine = StartFake(model, {.max_model_len = 20});
  Request r{.prompt = std::vector<TokenId>(17, 1), .sampling = {.max_tokens = 100}};
  const auto answer = Ask(*engine, r);
  EXPECT_EQ(answer->tokens.size(), 3u);
  EXPECT_EQ(answer->finish, FinishReason::kLength);
  r.prompt.assign(20, 1);
  EXPECT_EQ(Ask(*engine, r).status().code(), StatusCode::kContextLength);
}

TEST(Engine, RefusesWhatItCannotServeByName) {
  auto engine = StartFake({});
  const auto refused = [&](Request r) { return Ask(*engine, r).status(); };
  EXPECT_EQ(refused({}).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused({.prompt = {64}}).message().find("64"), std::string::npos);
  EXPECT_EQ(refused({.prompt = {-1}}).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused({.prompt = {1}, .sampling = {.temperature = 3}}).message().find("temperature"), std::string::npos);
  EXPECT_NE(refused({.prompt = {1}, .sampling = {.n = 0}}).message().find("n is 0"), std::string::npos);
}

TEST(Engine, ASeedIsDrawnAndReported) {
  auto engine = StartFake({});
  const Request r{.prompt = {1}, .sampling = {.max_tokens = 8, .ignore_eos = true}};
  const auto a = Generate(*engine, r, {}), b = Generate(*engine, r, {});
  EXPECT_NE(a->seed, b->seed);
  Request again = r;
  again.sampling.seed = a->seed;
  const auto c = Generate(*engine, again, {});
  EXPECT_EQ(c->seed, a->seed);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(a->choices[0].tokens[i].token, c->choices[0].tokens[i].token);
}

TEST(Engine, LogitsThatAreNotNumbersEndThatChoiceAlone) {
  const FakeModelOptions model{.nan_after = 7};
  auto engine = StartFake(model);
  Recorder bad, good;
  ASSERT_TRUE(engine->Submit({.prompt = {7}}, bad.Sink()).ok());
  ASSERT_TRUE(engine
                  ->Submit({.prompt = {8}, .sampling = {.max_tokens = 3, .ignore_eos = true, .stop_token_ids = {7}}},
                           good.Sink())
                  .ok());
  ASSERT_TRUE(bad.Wait());
  ASSERT_TRUE(good.Wait());
  EXPECT_EQ(bad.choice().finish, FinishReason::kError);
  EXPECT_EQ(bad.choice().error.code(), StatusCode::kInternal);
  EXPECT_NE(good.choice().finish, FinishReason::kError);
  EXPECT_EQ(engine->stats().failed, 1u);
  EXPECT_EQ(engine->stats().blocks_used, 0);
}

TEST(Engine, AnAbortFreesBlocksBeforeTheNextStep) {
  StepGate gate;
  const FakeModelOptions model{.gate = &gate};
  // Room for A alone: B can be computed only when A's blocks are free, and C only when B is gone.
  auto engine = StartFake(model, {.max_model_len = 64, .kv_cache_memory_bytes = BytesOfBlocks(4)});
  gate.Close();
  const Request r{.prompt = std::vector<TokenId>(60, 1), .sampling = {.max_tokens = 4, .ignore_eos = true}};
  Recorder a, b, c;
  const auto id_a = engine->Submit(r, a.Sink());
  ASSERT_TRUE(gate.WaitUntilBlocked());
  const auto id_b = engine->Submit(r, b.Sink());
  ASSERT_TRUE(engine->Submit(r, c.Sink()).ok());
  EXPECT_EQ(engine->stats().waiting + engine->stats().running, 3);
  engine->Abort(*id_b);  // queued
  engine->Abort(*id_a);  // running
  engine->Abort(RequestId(12345));
  gate.Open();
  ASSERT_TRUE(a.Wait());
  ASSERT_TRUE(b.Wait());
  ASSERT_TRUE(c.Wait());
  EXPECT_EQ(a.choice().finish, FinishReason::kAborted);
  EXPECT_LE(a.choice().tokens.size(), 1u);  // of the step that was under way
  EXPECT_EQ(b.choice().finish, FinishReason::kAborted);
  EXPECT_TRUE(b.choice().tokens.empty());
  EXPECT_EQ(c.choice().finish, FinishReason::kLength);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.steps, 1u + 4u);  // not one step between A's end and C's start
  EXPECT_EQ(stats.aborted, 2u);
}

TEST(Engine, OneChoiceCanBeAborted) {
  StepGate gate;
  const FakeModelOptions model{.eos_ids = {}, .gate = &gate};
  auto engine = StartFake(model);
  gate.Close();
  Recorder r(3);
  const auto id = engine->Submit({.prompt = {1}, .sampling = {.seed = 3, .n = 3, .max_tokens = 6}}, r.Sink());
  ASSERT_TRUE(gate.WaitUntilBlocked());
  engine->AbortChoice(*id, 1);
  engine->AbortChoice(*id, 77);
  gate.Open();
  ASSERT_TRUE(r.Wait());
  EXPECT_EQ(r.choice(0).tokens.size(), 6u);
  EXPECT_EQ(r.choice(1).finish, FinishReason::kAborted);
  EXPECT_EQ(r.choice(2).tokens.size(), 6u);
  EXPECT_NE(r.choice(0).tokens, r.choice(2).tokens);
}

TEST(Engine, TwoHundredClientsThatGoAwayLeaveNoBlocks) {
  const FakeModelOptions model{.eos_ids = {}};
  auto engine = StartFake(model, {.max_model_len = 300,
                                  .max_num_seqs = 16,
                                  .max_num_batched_tokens = 40,
                                  .kv_cache_memory_bytes = BytesOfBlocks(40)});
  RandomNumbers random(5);
  std::deque<Recorder> recorders;
  std::vector<std::thread> clients;
  for (int i = 0; i < 200; ++i) {
    Request r{.prompt = RandomTokens(random, random.Next(1, 150), model.vocab),
              .sampling = {.seed = 1, .n = static_cast<int>(random.Next(1, 2)), .max_tokens = 150}};
    Recorder& recorder = recorders.emplace_back(r.sampling.n);
    const auto id = engine->Submit(std::move(r), recorder.Sink());
    ASSERT_TRUE(id.ok());
    // Goes away at once, while queued, in its prompt, after some tokens, or after its end.
    const auto tokens = static_cast<size_t>(random.Next(0, 3) == 0 ? 0 : random.Next(1, 200));
    if (tokens == 0)
      engine->Abort(*id);
    else if (i % 8 == 0)
      clients.emplace_back([&recorder, &engine, id, tokens] {
        recorder.WaitForTokens(tokens);
        engine->Abort(*id);
      });
    else
      clients.emplace_back([&engine, id, tokens] {
        std::this_thread::sleep_for(milliseconds(tokens));
        engine->Abort(*id);
      });
  }
  for (std::thread& t : clients) t.join();
  for (Recorder& r : recorders) ASSERT_TRUE(r.Wait());
  EXPECT_EQ(engine->stats().blocks_used, 0);
  EXPECT_EQ(engine->stats().running, 0);
  EXPECT_EQ(engine->stats().waiting, 0);
  EXPECT_GT(engine->stats().aborted, 50u);
  ExpectOracleAnswers(*engine, model, RandomRequests(3, 9, model.vocab));
}

TEST(Engine, RefusesWhenTheQueueIsFull) {
  StepGate gate;
  const FakeModelOptions model{.gate = &gate};
  auto engine = StartFake(model, {.max_num_seqs = 1, .max_queued_requests = 2});
  gate.Close();
  const Request r{.prompt = {1}, .sampling = {.max_tokens = 2}};
  std::deque<Recorder> recorders(3);
  for (Recorder& recorder : recorders) ASSERT_TRUE(engine->Submit(r, recorder.Sink()).ok());
  Recorder refused;
  EXPECT_EQ(engine->Submit(r, refused.Sink()).status().code(), StatusCode::kOverloaded);
  gate.Open();
  for (Recorder& recorder : recorders) ASSERT_TRUE(recorder.Wait());
  EXPECT_TRUE(Ask(*engine, r).ok());  // places are free again
}

TEST(Engine, DrainFinishesWhatRunsAndTakesNoMore) {
  const FakeModelOptions model{.eos_ids = {}};
  auto engine = StartFake(model);
  std::deque<Recorder> recorders(5);
  for (Recorder& r : recorders) {
    ASSERT_TRUE(engine->Submit({.prompt = {1}, .sampling = {.max_tokens = 200}}, r.Sink()).ok());
  }
  EXPECT_TRUE(engine->Drain(seconds(30)).ok());
  for (Recorder& r : recorders) EXPECT_EQ(r.choice().finish, FinishReason::kLength);  // without waiting
  EXPECT_EQ(Ask(*engine, {.prompt = {1}}).status().code(), StatusCode::kUnavailable);
}

TEST(Engine, DrainAbortsAtItsDeadline) {
  StepGate gate;
  const FakeModelOptions model{.eos_ids = {}, .gate = &gate};
  auto engine = StartFake(model);
  gate.Close();
  Recorder r;
  ASSERT_TRUE(engine->Submit({.prompt = {1}, .sampling = {.max_tokens = 200}}, r.Sink()).ok());
  ASSERT_TRUE(gate.WaitUntilBlocked());
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(200));
    gate.Open();
  });
  EXPECT_EQ(engine->Drain(milliseconds(50)).code(), StatusCode::kDeadline);
  opener.join();
  EXPECT_EQ(r.choice().finish, FinishReason::kAborted);
}

TEST(Engine, EndsWithRequestsInFlight) {
  StepGate gate;
  const FakeModelOptions model{.eos_ids = {}, .gate = &gate};
  auto engine = StartFake(model);
  gate.Close();
  Recorder running, queued;
  ASSERT_TRUE(engine->Submit({.prompt = {1}, .sampling = {.max_tokens = 200}}, running.Sink()).ok());
  ASSERT_TRUE(gate.WaitUntilBlocked());
  ASSERT_TRUE(engine->Submit({.prompt = {1}, .sampling = {.max_tokens = 200}}, queued.Sink()).ok());
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(100));  // after the engine was told to end
    gate.Open();
  });
  engine.reset();
  opener.join();
  EXPECT_EQ(running.choice().finish, FinishReason::kAborted);
  EXPECT_EQ(queued.choice().finish, FinishReason::kAborted);
}

TEST(Engine, AFailedPassEndsEveryChoiceWithTheReason) {
  const FakeModelOptions model{.replicas = 2, .eos_ids = {}, .fail_at_pass = 3};
  auto engine = StartFake(model, {.max_num_seqs = 2});
  EXPECT_TRUE(engine->health().ok());
  std::deque<Recorder> recorders;
  const Request r{.prompt = {1, 2}, .sampling = {.seed = 1, .n = 3, .max_tokens = 100}};
  for (int i = 0; i < 4; ++i) {  // some run, some wait
    const auto id = engine->Submit(r, recorders.emplace_back(3).Sink());
    ASSERT_TRUE(id.ok() || id.status().message() == kFakeFailure);
    if (!id.ok()) recorders.pop_back();
  }
  ASSERT_GE(recorders.size(), 1u);
  for (Recorder& recorder : recorders) {
    ASSERT_TRUE(recorder.Wait(seconds(5)));
    for (int c = 0; c < 3; ++c) {
      EXPECT_EQ(recorder.choice(c).finish, FinishReason::kError);
      EXPECT_EQ(recorder.choice(c).error.code(), StatusCode::kUnavailable);
      EXPECT_EQ(recorder.choice(c).error.message(), kFakeFailure);
      EXPECT_LE(recorder.choice(c).tokens.size(), 3u);
    }
  }
  EXPECT_EQ(recorders[0].choice(0).tokens.size(), 3u);  // of the passes before
  EXPECT_EQ(engine->health().code(), StatusCode::kUnavailable);
  EXPECT_EQ(engine->health().message(), kFakeFailure);
  const Status refused = engine->Submit(r, recorders[0].Sink()).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.message(), kFakeFailure);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.steps, 3u);
  EXPECT_EQ(stats.failed, 3 * recorders.size());
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(engine->Drain(seconds(30)).message(), kFakeFailure);
  engine.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(2));
}

// Requests and aborts from many threads while the pass fails: each accepted one hears its end, once.
TEST(Engine, NobodyIsForgottenWhenAPassFails) {
  for (int64_t pass = 0; pass < 40; ++pass) {
    auto engine = StartFake({.eos_ids = {}, .fail_at_pass = pass});
    std::atomic<int> accepted = 0, ended = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&] {
        while (true) {
          const auto id = engine->Submit({.prompt = {1}, .sampling = {.max_tokens = 3}},
                                         [&](const Delta& delta) { ended += delta.finish.has_value(); });
          if (!id.ok()) return;
          ++accepted;
          if (id->value() % 3 == 0) engine->Abort(*id);
        }
      });
    }
    for (std::thread& t : clients) t.join();
    EXPECT_EQ(engine->Drain(seconds(10)).message(), kFakeFailure);
    EXPECT_EQ(accepted, ended);
  }
}

TEST(Engine, AModelThatIsKnownToBeBrokenTakesNoRequests) {
  std::atomic<bool> dead = false;
  auto engine = StartFake({.dead = &dead});
  ASSERT_TRUE(Ask(*engine, {.prompt = {1}}).ok());
  dead = true;
  EXPECT_EQ(engine->health().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Ask(*engine, {.prompt = {1}}).status().message(), kFakeFailure);
}

double ProcessCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

TEST(Engine, SleepsWhenIdle) {
  auto engine = StartFake({});
  ASSERT_TRUE(Ask(*engine, {.prompt = {1}}).ok());
  const uint64_t steps = engine->stats().steps;
  const double before = ProcessCpuSeconds();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(ProcessCpuSeconds() - before, 0.03);
  EXPECT_EQ(engine->stats().steps, steps);
}

TEST(Generate, HandsOutDeltasInOrderAndLetsTheCallerEndAChoice) {
  const FakeModelOptions model{.eos_ids = {}};
  auto engine = StartFake(model);
  std::vector<TokenId> seen;
  const Request r{.prompt = {1, 2}, .sampling = {.seed = 4, .max_tokens = 100}};
  const auto out = Generate(*engine, r, [&](const Delta& delta) {
    for (const SampledToken& t : delta.tokens) seen.push_back(t.token);
    return seen.size() >= 5 ? AfterDelta::kEndChoice : AfterDelta::kContinue;
  });
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->choices[0].finish, FinishReason::kAborted);
  ASSERT_EQ(out->choices[0].tokens.size(), 5u);
  std::vector<TokenId> expected = Oracle(model, r, 0).tokens;
  expected.resize(5);
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(engine->stats().blocks_used, 0);
}

TEST(Generate, StopsBeforeTheFirstToken) {
  StepGate gate;
  const FakeModelOptions model{.eos_ids = {}, .gate = &gate};
  auto engine = StartFake(model);
  gate.Close();
  int deltas = 0, asked = 0;
  const auto count = [&](const Delta&) {
    ++deltas;
    return AfterDelta::kContinue;
  };
  const auto stop = [&] {
    ++asked;
    gate.Open();
    return true;
  };
  const Request r{.prompt = {1, 2}, .sampling = {.n = 2, .max_tokens = 100000}};
  const auto out = Generate(*engine, r, count, {.stop = stop});
  ASSERT_TRUE(out.ok());
  for (const GeneratedChoice& choice : out->choices) {
    EXPECT_EQ(choice.finish, FinishReason::kAborted);
    EXPECT_TRUE(choice.tokens.empty());
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(deltas, 0);
  EXPECT_EQ(engine->stats().blocks_used, 0);
}

// Sinks run on the step thread, so a token's time lies between the news of the one before and its own.
TEST(Engine, TokensAreStampedWhenTheyAreSampled) {
  using Clock = std::chrono::steady_clock;
  auto engine = StartFake({.eos_ids = {}});
  Recorder recorder;
  std::vector<Clock::time_point> heard = {Clock::now()};
  const auto sink = [&](Delta delta) {
    heard.push_back(Clock::now());
    recorder.Sink()(std::move(delta));
  };
  ASSERT_TRUE(engine->Submit({.prompt = {1, 2}, .sampling = {.seed = 1, .max_tokens = 20}}, sink).ok());
  ASSERT_TRUE(recorder.Wait());
  const std::vector<SampledToken> sampled = recorder.choice().sampled;
  ASSERT_EQ(sampled.size(), 20u);
  for (size_t i = 0; i < sampled.size(); ++i) {
    EXPECT_GE(sampled[i].sampled_at, heard[i]) << "token " << i;
    EXPECT_LE(sampled[i].sampled_at, heard[i + 1]) << "token " << i;
  }
}

TEST(Generate, GivesUpWhenNoTokenComes) {
  StepGate gate;
  const FakeModelOptions model{.gate = &gate};
  auto engine = StartFake(model);
  gate.Close();
  const auto out = Generate(*engine, {.prompt = {1}}, {}, {.deadline = milliseconds(50)});
  EXPECT_EQ(out.status().code(), StatusCode::kDeadline);
  gate.Open();
  EXPECT_TRUE(engine->Drain(seconds(10)).ok());
  EXPECT_EQ(engine->stats().blocks_used, 0);
}

TEST(Engine, AWarmUpComputesForNobodyAndCountsNowhere) {
  for (const int64_t max_model_len : {int64_t{2}, int64_t{500}}) {
    std::atomic<int64_t> rows = 0;
    FakeModelOptions model{.replicas = 2, .rows = &rows};
    const EngineOptions options{.max_model_len = max_model_len,
                                .max_num_batched_tokens = 16,
                                .warm_up = EngineOptions::WarmUp::kYes};
    auto engine = Engine::StartWith(MakeFakeModel(model), options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_GE(rows, max_model_len == 2 ? 2 : 2 * 17) << "prompt and a token of each replica";
    const EngineStats stats = (*engine)->stats();
    EXPECT_EQ(stats.steps + stats.prompt_tokens + stats.generated_tokens + stats.aborted, 0u);
    EXPECT_EQ(stats.finished_length + stats.finished_stop + stats.failed, 0u);
    EXPECT_EQ(stats.blocks_used + stats.running + stats.waiting, 0);
  }
  FakeModelOptions broken{.fail_at_pass = 0};
  auto failed = Engine::StartWith(MakeFakeModel(broken), {.warm_up = EngineOptions::WarmUp::kYes});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().message(), kFakeFailure);
}

}  // namespace
}  // namespace sixfold
