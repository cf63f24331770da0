#include "apps/verify_fault.h"
#include "base/plural.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>

#include "base/check.h"

namespace sixfold::apps {
namespace {

// "STEP:ROW:COLUMN"
bool ParsePlace(std::string_view text, VerifyFault* fault) {
  for (int64_t* value : {&fault->step, &fault->row, &fault->column}) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc() || *value < 0) return false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (value == &fault->column) return text.empty();
    if (text.empty() || text.front() != ':') return false;
    text.remove_prefix(1);
  }
  return false;
}

}  // namespace

Result<std::optional<VerifyFault>> ParseVerifyFault(const std::string& text, const VerifyWork& work) {
  if (text.empty()) return std::optional<VerifyFault>();
  if (text == "bytes") return std::optional<VerifyFault>({.kind = VerifyFault::Kind::kBytes});
  VerifyFault fault;
  constexpr std::string_view kPrefix = "logit:";
  if (!text.starts_with(kPrefix) || !ParsePlace(std::string_view(text).substr(kPrefix.size()), &fault)) {
    return InvalidArgument("--inject-fault is '" + text + "'; it may be logit:STEP:ROW:COLUMN or bytes");
  }
  const auto steps = static_cast<int64_t>(work.steps.size());
  if (fault.step >= steps || fault.row >= work.rows(fault.step) || fault.column >= work.vocab) {
    return InvalidArgument(fmt::format("--inject-fault {}: verify runs {}, step {} has {}, and a row has {} columns",
                                       text, Plural(steps, "step"),
                                       fault.step, Plural(fault.step < steps ? work.rows(fault.step) : 0, "row"), work.vocab));
  }
  return std::optional<VerifyFault>(fault);
}

void InjectFault(const VerifyFault& fault, int64_t step, int64_t vocab, std::span<float> logits) {
  if (fault.kind != VerifyFault::Kind::kLogit || fault.step != step) return;
  float& logit = logits[static_cast<size_t>(fault.row * vocab + fault.column)];
  logit = std::bit_cast<float>(std::bit_cast<uint32_t>(logit) ^ 1u);
}

void InjectFault(const VerifyFault& fault, Ledger* counted) {
  if (fault.kind == VerifyFault::Kind::kBytes && !counted->empty()) ++counted->begin()->second.bytes;
}

}  // namespace sixfold::apps
