#include "kernels/experts/cases.h"

namespace weir {
namespace {

struct CaseShape {
  int64_t n, k, e, h, i;
};

// Routes slot k of token n to expert (n * stride + k) of the first `experts`, wrapped.
std::vector<int64_t> Routes(const CaseShape& s, int64_t stride, int64_t experts) {
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t k = 0; k < s.k; ++k) ids.push_back((n * stride + k) % experts);
  }
  return ids;
}

OpCase Case(std::string name, const CaseShape& s, std::vector<int64_t> ids,
            Attributes attributes = {}, bool bias = false) {
  OpCase op_case{std::move(name),
                 {{.dims = {s.n, s.h}},
                  {.kind = CaseInput::Kind::kInts, .dims = {s.n, s.k}, .ints = std::move(ids)},
                  {.dims = {s.n, s.k}},
                  {.dims = {s.e, 2 * s.i, s.h}, .scale = 0.3},
                  {.dims = {s.e, s.h, s.i}, .scale = 0.3}},
                 std::move(attributes)};
  if (bias) {
    op_case.in.push_back({.dims = {s.e, 2 * s.i}});
    op_case.in.push_back({.dims = {s.e, s.h}});
  }
  return op_case;
}

}  // namespace

std::vector<OpCase> ExpertsCases() {
  const CaseShape small{16, 2, 4, 12, 10}, odd{37, 3, 5, 19, 7};
  const Attributes gpt_oss = {{"alpha", 1.702}, {"beta", 1.0}, {"limit", 1.5}};
  auto bias_only_last = Case("down_bias_only", small, Routes(small, 1, 4));
  bias_only_last.in.push_back({.kind = CaseInput::Kind::kAbsent});
  bias_only_last.in.push_back({.dims = {small.e, small.h}});
  return {Case("balanced", small, Routes(small, 1, 4)),
          Case("empty_experts", small, Routes(small, 1, 2), {}, true),
          Case("all_to_one", {9, 1, 3, 8, 8}, std::vector<int64_t>(9, 1)),
          Case("same_expert_twice", {5, 2, 3, 8, 8}, std::vector<int64_t>(10, 2), {}, true),
          Case("one_token", {1, 2, 4, 8, 8}, {3, 0}, gpt_oss, true),
          Case("no_tokens", {0, 2, 4, 8, 8}, {}, {}, true),
          Case("every_expert", {7, 5, 5, 8, 6}, Routes({7, 5, 5, 8, 6}, 1, 5)),
          Case("middle_only", {5, 1, 3, 8, 8}, {1, 1, 1, 1, 1}),
          Case("odd", odd, Routes(odd, 2, 5), gpt_oss, true),
          Case("units", {75, 2, 3, 9, 8}, Routes({75, 2, 3, 9, 8}, 1, 2),
               {{"leaves", int64_t{3}}, {"unit_rows", int64_t{4}}}, true),
          Case("gelu", odd, Routes(odd, 1, 5), {{"activation", "gelu"}}),
          Case("gelu_tanh", odd, Routes(odd, 1, 5), {{"activation", "gelu_tanh"}}, true),
          Case("relu", small, Routes(small, 1, 3), {{"activation", "relu"}}, true),
          Case("silu", small, Routes(small, 1, 4), {{"activation", "silu"}}),
          bias_only_last};
}

}  // namespace weir
