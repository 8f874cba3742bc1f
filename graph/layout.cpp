#include "graph/layout.h"

#include <algorithm>

#include "graph/error.h"

namespace weir {
namespace {

struct GroupRule {
  std::string_view name;
  int64_t Layout::*degree;
  bool consecutive;  // else the ranks at the same place of their runs
};

constexpr GroupRule kRules[] = {
    {"world", &Layout::world, true},
    {"expert", &Layout::expert_parallel, true},
    {"replica", &Layout::expert_parallel, false},
    {"vocabulary", &Layout::vocabulary_parallel, true},
    {"vocabulary_replica", &Layout::vocabulary_parallel, false},
    {"context", &Layout::context_parallel, true},
    {"context_replica", &Layout::context_parallel, false},
};

const GroupRule& RuleOf(std::string_view group) {
  std::string known;
  for (const GroupRule& rule : kRules) {
    if (rule.name == group) return rule;
    known += StrCat(known.empty() ? "" : ", ", rule.name);
  }
  throw Error(ErrorCode::kInvalidArgument, StrCat("no rank group '", group, "'; known: ", known));
}

}  // namespace

void Layout::Validate() const {
  WEIR_CHECK(world > 0, ErrorCode::kInvalidArgument, "the number of ranks is ", world, ", expected at least 1");
  std::string problems;
  const auto check = [&](const char* flag, int64_t degree) {
    if (degree > 0 && world % degree == 0) return;
    problems += StrCat("\n  ", flag, "=", degree, degree > 0 ? " does not divide " : " is not positive; ", world, " ranks");
  };
  check("--expert-parallel", expert_parallel);
  check("--vocab-parallel", vocabulary_parallel);
  check("--context-parallel", context_parallel);
  WEIR_CHECK(problems.empty(), ErrorCode::kInvalidArgument, "the ranks cannot be laid out:", problems,
             "\n  use divisors of the number of ranks");
}

std::vector<int64_t> Layout::Members(std::string_view group, int64_t rank) const {
  Validate();
  WEIR_CHECK(rank >= 0 && rank < world, ErrorCode::kInternal, "rank ", rank, " of ", world);
  const GroupRule& rule = RuleOf(group);
  const int64_t degree = this->*rule.degree;
  const int64_t count = rule.consecutive ? degree : world / degree;
  const int64_t first = rule.consecutive ? rank / degree * degree : rank % degree;
  std::vector<int64_t> members;
  for (int64_t i = 0; i < count; ++i) members.push_back(first + i * (rule.consecutive ? 1 : degree));
  return members;
}

int64_t Layout::GroupSize(std::string_view group) const { return static_cast<int64_t>(Members(group, 0).size()); }

Share ShareOf(int64_t count, int64_t parts, int64_t index) {
  const int64_t base = count / parts, extra = count % parts;
  const int64_t begin = index * base + std::min(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

}  // namespace weir
