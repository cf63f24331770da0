// verify --inject-fault: a wrong result on purpose, so that a test (and whoever doubts) can see that verify notices one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "apps/verify_run.h"
#include "base/status.h"
#include "mesh/collectives.h"

namespace sixfold::apps {

struct VerifyFault {
  enum class Kind : uint8_t { kLogit, kBytes } kind = Kind::kLogit;
  int64_t step = 0, row = 0, column = 0;  // kLogit: the lowest bit of this logit is flipped; rows of all sequences of the step
};

// "logit:STEP:ROW:COLUMN" or "bytes"; "" is none. kInvalidArgument: another text, or a place that the work does not have.
Result<std::optional<VerifyFault>> ParseVerifyFault(const std::string& text, const VerifyWork& work);
// `step`'s logits, [rows][vocab], with the fault in them where it belongs there.
void InjectFault(const VerifyFault& fault, int64_t step, int64_t vocab, std::span<float> logits);
// kBytes: one byte more than was sent.
void InjectFault(const VerifyFault& fault, Ledger* counted);

}  // namespace sixfold::apps
