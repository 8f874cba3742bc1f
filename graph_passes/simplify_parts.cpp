#include <algorithm>
#include <limits>
#include <unordered_map>

#include "graph_passes/match.h"
#include "graph_passes/shape_tensor.h"
#include "graph_passes/simplify.h"

namespace weir {
namespace {

using Ints = std::vector<int64_t>;

struct Range {
  int64_t axis, start, end, step;
};

// The axes a Slice really cuts; nullopt when something depends on the launch.
std::optional<std::vector<Range>> CutsOf(const Node& slice) {
  const Value *x = slice.in(0), *end_value = slice.in(2);
  const auto starts = IntsOf(slice.in(1)), ends = IntsOf(end_value);
  if (!x->has_shape || !starts || end_value == nullptr) return std::nullopt;
  const auto steps = slice.in(4) ? IntsOf(slice.in(4)) : Ints(starts->size(), 1);
  auto axes = slice.in(3) ? IntsOf(slice.in(3)) : Ints();
  if (!steps || !axes) return std::nullopt;
  for (size_t i = axes->size(); !slice.in(3) && i < starts->size(); ++i)
    axes->push_back(static_cast<int64_t>(i));
  std::vector<Range> cuts;
  for (size_t i = 0; i < starts->size(); ++i) {
    const auto axis = NormalAxis((*axes)[i], x->shape.size());
    if (!axis || (*steps)[i] < 1) return std::nullopt;
    const Dim& size = x->shape[static_cast<size_t>(*axis)];
    const bool to_the_end = ends ? (*ends)[i] >= std::numeric_limits<int32_t>::max()
                                 : end_value->content && (*end_value->content)[i] == size;
    if (size.IsConstant() && (ends || to_the_end)) {
      const int64_t n = size.Constant();
      const auto clamp = [n](int64_t at) {
        return std::clamp<int64_t>(at < 0 ? at + n : at, 0, n);
      };
      const Range cut{*axis, clamp((*starts)[i]), to_the_end ? n : clamp((*ends)[i]), (*steps)[i]};
      if (cut.start != 0 || cut.end != n || cut.step != 1) cuts.push_back(cut);
    } else if ((*starts)[i] != 0 || (*steps)[i] != 1 || !to_the_end) {
      return std::nullopt;
    }
  }
  std::sort(cuts.begin(), cuts.end(),
            [](const Range& a, const Range& b) { return a.axis < b.axis; });
  return cuts;
}

// Slice(Concat(a, b, c)) ==> the covered inputs.
bool SliceOfConcat(Rewrite& r, const Range& cut) {
  const Node* concat = Made(r.in(0), "Concat");
  if (concat == nullptr || cut.step != 1 || concat->attributes.Int("axis") != cut.axis)
    return false;
  std::vector<Value*> parts;
  int64_t at = 0;
  for (Value* input : concat->inputs) {
    if (!input->has_shape || !input->shape[static_cast<size_t>(cut.axis)].IsConstant())
      return false;
    const int64_t size = input->shape[static_cast<size_t>(cut.axis)].Constant();
    const int64_t from = std::max(cut.start - at, int64_t{0}), to = std::min(cut.end - at, size);
    at += size;
    if (from >= to) continue;
    if (to - from < size) {
      input = r.builder.Op("Slice", {input, r.builder.Ints({from}), r.builder.Ints({to}),
                                     r.builder.Ints({cut.axis})});
    }
    parts.push_back(input);
  }
  if (parts.empty()) return false;
  return r.Replace(parts.size() == 1 ? parts[0]
                                     : r.builder.Op("Concat", parts, {{"axis", cut.axis}}));
}

bool SimplifySlice(Rewrite& r) {
  if (r.node.inputs.size() < 3) return false;
  const auto cuts = CutsOf(r.node);
  if (!cuts) return false;
  if (cuts->empty()) return r.Replace(r.in(0));
  if (cuts->size() == 1 && SliceOfConcat(r, (*cuts)[0])) return true;
  Ints starts, ends, axes, steps;
  for (const Range& cut : *cuts) {
    starts.push_back(cut.start);
    ends.push_back(cut.end);
    axes.push_back(cut.axis);
    steps.push_back(cut.step);
  }
  const bool unit = std::all_of(steps.begin(), steps.end(), [](int64_t step) { return step == 1; });
  const bool same = r.node.inputs.size() == (unit ? 4u : 5u) && IntsOf(r.in(1)) == starts &&
                    IntsOf(r.in(2)) == ends && IntsOf(r.in(3)) == axes &&
                    r.in(3)->dtype == DType::kInt64;
  if (same) return false;
  std::vector<Value*> inputs = {r.in(0), r.builder.Ints(starts), r.builder.Ints(ends),
                                r.builder.Ints(axes)};
  if (!unit) inputs.push_back(r.builder.Ints(steps));
  return r.Replace(r.builder.Op("Slice", inputs));
}

// Concat(Rotary(x[.., :d]), x[.., d:]) ==> Rotary(x): it copies the channels after the first d.
bool RotaryOfPart(Rewrite& r) {
  const Node* rotary = r.node.inputs.size() == 2 ? Made(r.in(0), "Rotary") : nullptr;
  const Part first = rotary ? PartOf(rotary->in(0)) : Part{}, rest = PartOf(r.in(1));
  if (!first || !rest || first.whole != rest.whole || first.step != 1 || rest.step != 1)
    return false;
  const Value *x = first.whole, *cos = rotary->in(1);
  const auto last = static_cast<int64_t>(x->shape.size()) - 1;
  const bool covers = first.axis == last && rest.axis == last &&
                      r.node.attributes.Int("axis", 0) == last && first.start == 0 &&
                      rest.start == first.length &&
                      x->shape.back() == Dim(first.length + rest.length);
  if (!covers || !cos->has_shape || !(cos->shape.back() * Dim(2) == Dim(first.length)))
    return false;
  return r.Replace(
      r.builder.Op("Rotary", {first.whole, rotary->in(1), rotary->in(2)}, rotary->attributes));
}

bool SimplifyConcat(Rewrite& r) {
  if (r.node.inputs.size() == 1) return r.Replace(r.in(0));
  if (RotaryOfPart(r)) return true;
  const auto axis = static_cast<size_t>(r.node.attributes.Int("axis", 0));
  std::vector<Value*> kept;
  for (Value* input : r.node.inputs) {
    if (!input->has_shape || axis >= input->shape.size()) return false;
    if (!(input->shape[axis] == Dim(0))) kept.push_back(input);
  }
  if (kept.size() == r.node.inputs.size() || kept.empty()) return false;
  if (kept.size() == 1) return r.Replace(kept[0]);
  return r.Replace(r.builder.Op("Concat", kept, r.node.attributes));
}

bool SimplifySplit(Rewrite& r) {
  return r.node.outputs.size() == 1 && r.ShapesKnown() && Same(r.in(0)->shape, r.out()->shape) &&
         r.Replace(r.in(0));
}

// SequenceAt(SplitToSequence(x), i) ==> output i of Split(x)
bool SimplifySplitToSequence(Rewrite& r) {
  if (!r.in(0)->has_shape || r.in(1) == nullptr) return false;
  const auto axis = NormalAxis(r.node.attributes.Int("axis", 0), r.in(0)->shape.size());
  auto sizes = IntsOf(r.in(1));
  if (!axis || !sizes || !r.in(0)->shape[static_cast<size_t>(*axis)].IsConstant()) return false;
  const int64_t total = r.in(0)->shape[static_cast<size_t>(*axis)].Constant();
  if (r.in(1)->shape.empty()) {
    const int64_t chunk = (*sizes)[0];
    sizes->clear();
    for (int64_t at = 0; at < total; at += chunk) sizes->push_back(std::min(chunk, total - at));
  }
  const auto count = static_cast<int64_t>(sizes->size());
  for (const Use& use : r.out()->uses) {
    const auto index = ScalarOf(use.node->in(1));
    if (!Is(*use.node, "SequenceAt") || !index || *index >= count || *index < -count) return false;
  }
  const auto parts = r.builder.Ops("Split", {r.in(0), r.builder.Ints(*sizes)},
                                   static_cast<int>(count), {{"axis", *axis}});
  const std::vector<Use> uses = r.out()->uses;
  for (const Use& use : uses) {
    const auto index = static_cast<int64_t>(*ScalarOf(use.node->in(1)));
    r.graph.ReplaceUses(use.node->out(),
                        parts[static_cast<size_t>(index < 0 ? index + count : index)]);
  }
  return true;
}

// ScatterND of consecutive rows ==> Concat(rows before, updates, rows after)
bool SimplifyScatterND(Rewrite& r) {
  const Value* indices = r.in(1);
  if (r.node.attributes.String("reduction", "none") != "none" || !r.ShapesKnown()) return false;
  if (indices->role != Role::kConstant || indices->data == nullptr || indices->shape.size() != 2)
    return false;
  if (!(indices->shape[1] == Dim(1)) || indices->data->elements() == 0) return false;
  const Dim& rows = r.in(0)->shape[0];
  const Ints at = indices->data->AsInts();
  for (size_t i = 1; i < at.size(); ++i) {
    if (at[i] != at[0] + static_cast<int64_t>(i)) return false;
  }
  if (!rows.IsConstant() || at[0] < 0 || at.back() >= rows.Constant()) return false;
  const auto part = [&](int64_t start, int64_t end) {
    return r.builder.Op(
        "Slice", {r.in(0), r.builder.Ints({start}), r.builder.Ints({end}), r.builder.Ints({0})});
  };
  std::vector<Value*> parts;
  if (at[0] > 0) parts.push_back(part(0, at[0]));
  parts.push_back(r.in(2));
  if (at.back() + 1 < rows.Constant()) parts.push_back(part(at.back() + 1, rows.Constant()));
  return r.Replace(parts.size() == 1 ? parts[0]
                                     : r.builder.Op("Concat", parts, {{"axis", int64_t{0}}}));
}

}  // namespace

SimplifyRule FindPartRule(const std::string& op) {
  static const std::unordered_map<std::string, SimplifyRule> rules = {
      {"Slice", SimplifySlice},
      {"Concat", SimplifyConcat},
      {"Split", SimplifySplit},
      {"ScatterND", SimplifyScatterND},
      {"SplitToSequence", SimplifySplitToSequence},
  };
  const auto it = rules.find(op);
  return it == rules.end() ? nullptr : it->second;
}

}  // namespace weir
